"""Sixteen made-up emoji of two artists in the packages' layout, and a config of two tiny towers."""

import json
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from tests.tiny import RUN, STACK, config_of

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 220), "grey": (90,) * 3}
ROUGE = {"red": "rouge", "green": "vert", "blue": "bleu", "grey": "gris"}
SHAPES = {"ball": "balle", "box": "boîte", "bar": "barre", "flag": "drapeau"}
SKIN = "1F3FB"


def write_emoji(folder: Path) -> Path:
    """Each a shape in a colour; "ball" has a tone of skin. Returns the folder."""
    words = {"en": [], "fr": []}
    for i, (colour, shape) in enumerate((c, s) for c in COLOURS for s in SHAPES):
        code = f"1F6{i:02X}"
        names = {"en": f"{colour} {shape}", "fr": f"{SHAPES[shape]} {ROUGE[colour]}"}
        for language, name in names.items():
            entry = {"label": name, "hexcode": code, "tags": name.split(), "group": i % 2}
            if shape == "ball":
                entry["skins"] = [{"label": f"{name}: light", "hexcode": f"{code}-{SKIN}"}]
            words[language].append(entry)
        for artist, shade in (("google", 1.0), ("twitter", 0.8)):
            files = [code] + [f"{code}-{SKIN}"] * (shape == "ball" and artist == "google")
            for file in files:
                _draw(folder, artist, file, shape, COLOURS[colour], shade)
    words["en"].append({"label": "regional indicator", "hexcode": "1F1E6"})
    for language, entries in words.items():
        path = folder / "emojibase-data" / language
        path.mkdir(parents=True)
        (path / "data.json").write_text(json.dumps(entries))
        groups = [{"order": 0, "message": "things & toys"}, {"order": 1, "message": "flags"}]
        (path / "messages.json").write_text(json.dumps({"groups": groups}))
    return folder


def _draw(folder, artist, code, shape, colour, shade):
    y, x = np.mgrid[:64, :64] - 31.5
    inside = {
        "ball": x**2 + y**2 < 700,
        "box": np.maximum(abs(x), abs(y)) < 24,
        "bar": abs(y) < 8,
        "flag": (x < -20) | (y < 0),
    }[shape]
    pixels = np.zeros((64, 64, 4), np.uint8)
    pixels[inside] = (*(int(c * shade) for c in colour), 255)
    path = folder / f"emoji-datasource-{artist}" / "img" / artist / "64"
    path.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path / f"{code.lower()}-fe0f.png")


def towers_config(folder: Path, **changes) -> ConfigDict:
    """Keys of `changes` have __ for a dot."""
    towers = {
        key.replace("model", f"model.{tower}"): x for tower in ("image", "text")
        for key, x in STACK.items()
    }  # fmt: skip
    values = {
        "steps": 4,
        "save_every": 2,
        "data.path": str(folder),
        "data.test_share": 0.25,
        "tokenizer.kind": "word",
        "batch.rows": 16,
        "batch.length": 8,
        "model.projection": 8,
        "model.image.image_size": (8, 8),
        "model.image.patch_size": (4, 4),
        "model.text.max_length": 12,
        "optimizer.learning_rate": 3e-3,
        "optimizer.warmup_steps": 1,
        "task.samples": 2,
    }
    return config_of("two_towers", "contrastive", RUN, towers, values, **changes)
