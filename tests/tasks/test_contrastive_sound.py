"""Three towers: the stamps that are read, what a batch holds, the loss of three pairs, recall."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.tiny import first_batch, make_trainer, start
from tests.tiny_described import ROUGE, towers_config, write_described
from transformer_lab.data.drawings import read_pictures
from transformer_lab.errors import LabError
from transformer_lab.ops.contrastive import softmax_loss
from transformer_lab.ops.spectrograms import log_mel
from transformer_lab.tasks.naming import recalls


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("described")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSFORMER_LAB_CACHE", str(folder / "cache"))
        write_described(folder)
        trainer = make_trainer(towers_config(folder, data__test_share=0.4), 1)
        assert len(trainer.task._stored[2]["fr"]) == 3
        yield trainer


def test_stamps_with_a_picture_and_all_languages_are_read_and_like_words_stay_together(trainer):
    data = trainer.task.data
    assert data.report["no_picture_or_not_in_all_languages"] == 2
    names = {split: {row.name for row in getattr(data, split)} for split in ("train", "test")}
    groups = [{"red_desc_fr.ogg"}, {"lime_desc_fr.ogg", "copy_desc_fr.ogg"}]
    assert sorted(names.values(), key=len) == groups  # equal descriptions, one split
    row = next(row for part in (data.train, data.test) for row in part if "red" in row.name)
    assert row.text == {"fr": "Une boîte rouge.", "ru": "Ящик красный."}
    assert row.sounds["ru"].endswith("red_desc_ru.ogg") and row.picture.endswith("red.png")


def test_a_rows_image_caption_and_sound_belong_together(trainer):
    task = trainer.task
    (batch,) = task.eval_batches("test")
    shapes = {name: (x.shape, x.dtype) for name, x in task.abstract_batch().items()}
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == shapes
    rows = [(row, language) for language in ("fr", "ru") for row in task.examples("test")]
    assert batch["tokens_mask"][:, 0].sum() == len(rows)
    for i, (row, language) in enumerate(rows):
        texts = task.encode_texts([row.text[language]])
        np.testing.assert_array_equal(batch["tokens"][i], texts["tokens"][0])
        colour = row.name.replace("copy", "lime").split("_")[0]
        assert batch["image"][i, 1, 1].tolist() == {"red": [255, 0, 0], "lime": [0, 255, 0]}[colour]
        tone = 400 + 300 * list(ROUGE).index(colour) + 3000 * (language == "ru")
        time = np.arange(800 + 16_000) / 16_000  # 50 ms, then silence, as the cache computes it
        wave = 0.5 * np.sin(2 * np.pi * tone * time) * (time < 0.05)
        mel = np.asarray(log_mel(jnp.asarray(wave, jnp.float32), 6))[:5]
        np.testing.assert_array_equal(batch["sound"][i, 5:], batch["sound"][i, :5].min())
        # The Ogg file is not exact, and its quiet bands are those of its noise.
        loud = mel > mel.max() - 0.5
        np.testing.assert_allclose(batch["sound"][i, 1:4][loud[1:4]], mel[1:4][loud[1:4]], atol=0.1)
        assert (batch["sound"][i, 2].argmax() == mel[2].argmax()).all()
    train = first_batch(task)
    assert train["tokens_mask"][:, 0].sum() == len(task.examples("train"))
    np.testing.assert_array_equal(train["sound"], first_batch(task)["sound"])


def test_the_loss_is_the_mean_of_three_pairs_and_recall_that_of_the_vectors(trainer):
    task, params = trainer.task, start(trainer).params
    (batch,) = task.eval_batches("test")
    placed = trainer.place(batch)
    found = jax.jit(task._embed)(params, placed)
    vectors = [np.asarray(found[name]) for name in ("image", "text", "sound")]
    for x in vectors:
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=1e-5)
    alone = task._vectors(params, "sound", batch["sound"], trainer.place)
    np.testing.assert_allclose(alone, vectors[2], atol=1e-5)
    scale = task.apply(params, method="temperature")["scale"]
    mask = batch["tokens_mask"][:, 0]
    losses = [
        softmax_loss(jnp.asarray(vectors[a]), jnp.asarray(vectors[b]), scale, jnp.asarray(mask))
        for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    total, weight = task.metrics(params, placed)["loss"]
    assert float(weight) == mask.sum()
    assert float(total) == pytest.approx(float(sum(t for t, _ in losses)) / 3, rel=1e-5)
    scores = task.score(params, "test", trainer.place, True)
    # Of equal descriptions one is scored.
    rows = len({row.text["fr"] for row in task.examples("test")})
    assert scores.values["fr_chance_1"] == 1 / rows
    assert len([name for name in scores.values if "recall" in name]) == 2 * 3 * 2 * 2
    near = vectors[2][:rows] @ vectors[1][:rows].T
    if rows == len(task.examples("test")):
        own = recalls("fr_sound_to_text_recall_", near, np.arange(rows), (1,))
        assert scores.values["fr_sound_to_text_recall_1"] == own["fr_sound_to_text_recall_1"]


def test_a_picture_lies_in_the_middle_of_a_transparent_square(tmp_path):
    Image.new("RGBA", (40, 20), (200, 100, 0, 51)).save(tmp_path / "a.png")
    (found,) = read_pictures([tmp_path / "a.png"], 16)
    assert (found[:4] == 0).all() and (found[12:] == 0).all()
    assert (found[4:12] == [40, 20, 0, 51]).all()  # a fifth of the colours: premultiplied
    (tmp_path / "b.png").write_bytes(b"none")
    with pytest.raises(LabError, match="b.png cannot be read as an image"):
        read_pictures([tmp_path / "b.png"], 16)
