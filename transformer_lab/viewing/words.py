"""Draws one word in several sentences: its static vector beside its vectors in context."""

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure


def cosines(vectors: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n n"]:
    """The cosine of each vector with each other one."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def draw(
    vectors: Float[np.ndarray, "n d"], static: Float[np.ndarray, "d"], labels: list[str], word: str
) -> Figure:
    """A figure of the cosines between a word's vectors in several lines, and of their two main
    directions, with the word's static vector, which is the same in every line."""
    everything = np.vstack([vectors, static])
    centred = vectors - vectors.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
    flat = (everything - vectors.mean(axis=0)) @ axes.T
    numbers = [str(i + 1) for i in range(len(labels))]
    figure = Figure((10, 4.5 + 0.2 * len(labels)), layout="constrained")
    left, right = figure.subplots(1, 2)
    drawn = left.imshow(cosines(everything), cmap="Blues")
    figure.colorbar(drawn, ax=left, shrink=0.7)
    left.set_xticks(range(len(everything)), [*numbers, "static"])
    left.set_yticks(range(len(everything)), [*numbers, "static"], rotation=90, va="center")
    left.set_title("cosines", fontsize="medium")
    right.scatter(*flat[:-1].T)
    right.scatter(*flat[-1:].T, marker="*", s=120, label="static vector")
    for number, at in zip(numbers, flat, strict=False):
        right.annotate(number, at, xytext=(4, 4), textcoords="offset points")
    right.legend()
    right.set_title("main directions of the vectors in context", fontsize="medium")
    title = "\n".join(f"{n}  {text}" for n, text in zip(numbers, labels, strict=True))
    figure.suptitle(f'"{word}" in\n{title}', fontsize="small", ha="left", x=0.02, parse_math=False)
    return figure
