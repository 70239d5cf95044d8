"""Install with `pip install -e .`; add `[test]` for the tests."""

from setuptools import find_packages, setup

setup(
    name="transformer_lab",
    version="0.1.0",
    description="Train, change, compare and scale transformers in JAX and Flax.",
    packages=find_packages(include=["transformer_lab", "transformer_lab.*"]),
    package_data={"transformer_lab.viewing": ["page.html", "page.js"]},
    python_requires=">=3.11",
    install_requires=[
        "absl-py>=2.1",
        "flax>=0.12",
        "grain>=0.2.15",
        "jax>=0.10",
        "jaxtyping>=0.3",
        "matplotlib>=3.8",
        "ml-collections>=1.0",
        "numpy>=2.0",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.11",
        "pillow>=10",
        "platformdirs>=4.0",
        "polib>=1.2",
        "rich>=13.0",
        "sacrebleu>=2.5",
        "safetensors>=0.5",
        "scikit-learn>=1.5",
        "sentencepiece>=0.2",
        "seqeval>=1.2.2",
        "tensorboardX>=2.6",
        "tensorflow-datasets>=4.9",
        "tokenizers>=0.21",
    ],
    extras_require={
        "test": [
            "beartype>=0.20",
            "hypothesis>=6.100",
            "playwright>=1.40",
            "pytest>=8.0",
            "pytest-xdist>=3.6",
            "ruff>=0.11",
            "submitit>=1.5",
        ],
        "bible": ["pysword>=0.2.8"],
        "slurm": ["submitit>=1.5"],
    },
)
