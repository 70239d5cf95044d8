"""Flax Linen modules from which models are built, made of the functions in `ops`."""
