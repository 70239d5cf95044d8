"""Train, change, compare and scale transformers in JAX and Flax."""
