"""A few described stamps in the package's layout, and a config of three tiny towers."""

from pathlib import Path

import numpy as np
import soundfile
from ml_collections import ConfigDict
from PIL import Image

from tests.tiny import RUN, STACK, config_of

COLOURS = ("red", "lime", "blue", "black")
ROUGE = {"red": "rouge", "lime": "vert", "blue": "bleu", "black": "noir"}
RUSSIAN = {"red": "красный", "lime": "зелёный", "blue": "синий", "black": "чёрный"}


def write_described(folder: Path, loudness: float = 0.5) -> Path:
    """Boxes of four colours, with recordings of a tone each that is higher in Russian; the one
    without a picture, and that in French alone, may be left out. Returns the folder."""
    time = np.arange(800) / 16_000
    for i, colour in enumerate(COLOURS):
        lines = [f"A {colour} box.", f"fr.utf8=Une boîte {ROUGE[colour]}.",
                 f"ru.utf8=Ящик {RUSSIAN[colour]}."]  # fmt: skip
        (folder / f"{colour}.txt").write_text("\n\n".join(lines), "utf-8")
        Image.new("RGBA", (20, 20), colour).save(folder / f"{colour}.png")
        for k, language in enumerate(("fr", "ru")):
            tone = loudness * np.sin(2 * np.pi * (400 + 300 * i + 3000 * k) * time)
            soundfile.write(folder / f"{colour}_desc_{language}.ogg", tone, 16_000)
    (folder / "black.png").unlink()
    (folder / "blue_desc_ru.ogg").unlink()
    (folder / "copy.txt").write_text((folder / "lime.txt").read_text("utf-8"), "utf-8")
    for end in (".png", "_desc_fr.ogg", "_desc_ru.ogg"):
        (folder / f"copy{end}").write_bytes((folder / f"lime{end}").read_bytes())
    return folder


def towers_config(folder: Path, **changes) -> ConfigDict:
    """Keys of `changes` have __ for a dot."""
    towers = {
        key.replace("model", f"model.{tower}"): x
        for tower in ("image", "text", "sound") for key, x in STACK.items()
    }  # fmt: skip
    values = {
        "data.path": str(folder),
        "data.test_share": 0.25,
        "tokenizer.kind": "word",
        "batch.rows": 4,
        "batch.length": 8,
        "model.projection": 8,
        "model.image.image_size": (4, 4),
        "model.image.patch_size": (2, 2),
        "model.sound.image_size": (8, 6),
        "model.sound.patch_size": (2, 6),
        "model.text.max_length": 12,
        "task.samples": 2,
    }
    return config_of("three_towers", "contrastive_sound", RUN, towers, values, **changes)
