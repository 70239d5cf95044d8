"""Draws attention as PNG pictures for papers."""

import io
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_lab.ops.rollout import rollout
from transformer_lab.viewing.capture import Map


def png(found: Map, layer: int | None = None, head: int | None = None) -> bytes:
    """A PNG picture of one head with its tokens, or of all layers and heads where None is given.

    For an image the patches' weights lie over it, with each layer's mean and the attention rollout
    up to that layer. Of sound the mean of the heads is drawn, below the spectrogram.
    """
    layers, heads = (
        range(n) if chosen is None else [chosen]
        for chosen, n in zip((layer, head), found.weights.shape, strict=False)
    )
    if found.seconds is not None:
        some = found.weights[np.ix_(list(layers), list(heads))].mean(axis=(0, 1))
        figure = _below_sound(found, some)
    elif found.picture is not None:
        figure = _over_picture(found, layers, heads)
    elif len(layers) == len(heads) == 1:
        figure = _one(found, layers[0], heads[0])
    else:
        figure, axes = _grid(layers, [f"head {h}" for h in heads])
        for i, row in zip(layers, axes, strict=True):
            for h, ax in zip(heads, row, strict=True):
                ax.imshow(found.weights[i, h], cmap="Blues", vmin=0, vmax=1)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def _one(found: Map, layer: int, head: int) -> Figure:
    t, s = found.weights.shape[2:]
    rows, columns = ([_cut(token) for token in side] for side in (found.rows, found.columns))
    size = lambda n, beside: min(2 + 0.22 * n, 40.0) + 0.09 * max(map(len, beside))  # noqa: E731
    figure = Figure((size(s, rows), size(t, columns)), layout="constrained")
    ax = figure.add_subplot(title=f"layer {layer}, head {head}")
    drawn = ax.imshow(found.weights[layer, head], cmap="Blues", vmin=0, aspect="auto")
    figure.colorbar(drawn)
    # A token may hold a "$": it is no formula.
    ax.set_xticks(range(s), columns, rotation=90, parse_math=False)
    ax.set_yticks(range(t), rows, parse_math=False)
    return figure


def _below_sound(found: Map, weights: Float[np.ndarray, "t s"]) -> Figure:
    t, s = weights.shape
    length = s * found.seconds
    figure = Figure((min(3 + 1.5 * length, 40.0), 2.5 + 0.22 * t), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=[1.5, 0.22 * t])
    above.imshow(found.picture, extent=(0, length, 0, 1), aspect="auto")
    above.set(yticks=[], ylabel="frequency")
    below.imshow(weights, extent=(0, length, t, 0), cmap="Blues", vmin=0, aspect="auto")
    below.set(xlabel="seconds")
    below.set_yticks(np.arange(t) + 0.5, map(_cut, found.rows), parse_math=False)
    return figure


def _cut(token: str, most: int = 24) -> str:
    return token if len(token) <= most else token[: most - 1] + "…"


def _over_picture(found: Map, layers: Any, heads: Any) -> Figure:
    own = ["mean", "rollout"] if found.rows == found.columns else ["mean"]
    figure, axes = _grid(layers, [*(f"head {h}" for h in heads), *own])
    for i, row in zip(layers, axes, strict=True):
        maps = class_token_maps(found, i)
        for ax, weights in zip(row, [*maps[list(heads)], *maps[-len(own) :]], strict=True):
            lay_over(ax, found, weights)
    return figure


def class_token_maps(found: Map, layer: int) -> Float[np.ndarray, "maps down across"]:
    """How much the first token attends to each patch: each head of the layer, their mean, and the
    rollout up to the layer. In a model without such a token, the mean over all patches; of queries
    that are no patches, the mean over queries, without a rollout."""
    down, across = found.grid
    readers = 1 if len(found.rows) > down * across else None
    heads = found.weights[layer]
    every = np.concatenate([heads, heads.mean(axis=0)[None]])
    if found.rows == found.columns:
        rolled = rollout([jnp.asarray(w[None]) for w in found.weights[: layer + 1]])
        every = np.concatenate([every, np.asarray(rolled)])
    return every[:, :readers, -down * across :].mean(axis=1).reshape(-1, down, across)


def lay_over(ax: Axes, found: Map, weights: Float[np.ndarray, "down across"]) -> None:
    """Draws the picture, and over it the weights, stretched to the same rectangle."""
    height, width = found.picture.shape[:2]
    extent = (0, width, height, 0)
    ax.imshow(found.picture, extent=extent)
    ax.imshow(weights, extent=extent, alpha=0.6, cmap="inferno", interpolation="bilinear")


def _grid(layers: Any, names: list[str]) -> tuple[Figure, np.ndarray]:
    """Small axes without ticks, one row for each layer and one column for each name."""
    shape = len(layers), len(names)
    figure = Figure((1.4 * shape[1] + 0.4, 1.4 * shape[0] + 0.4), layout="constrained")
    axes = figure.subplots(*shape, squeeze=False)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
    for ax, name in zip(axes[0], names, strict=True):
        ax.set_title(name, fontsize=8)
    for ax, layer in zip(axes[:, 0], layers, strict=True):
        ax.set_ylabel(f"layer {layer}", fontsize=8)
    return figure, axes
