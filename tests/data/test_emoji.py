"""Emoji by concept, their captions, and drawings placed on backgrounds."""

import numpy as np
import pytest

from tests.tiny_emoji import write_emoji
from transformer_lab.data import emoji
from transformer_lab.data.drawings import plain, varied
from transformer_lab.data.emoji import EmojiConfig, load_emoji
from transformer_lab.data.images.sources import ImageConfig, load_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_emoji(tmp_path_factory.mktemp("emoji")))


def test_concepts_are_in_one_split_each_and_only_trained_ones_have_tones(folder):
    data = load_emoji(EmojiConfig(path=folder, test_share=0.25, validation_share=0.125))
    splits = [{c.code for c in getattr(data, s)} for s in ("train", "validation", "test")]
    assert [len(codes) for codes in splits] == [10, 2, 4]
    assert len(set().union(*splits)) == 16
    assert all(len(c.drawings) == 1 for c in data.validation + data.test)
    toned = [c for c in data.train if len(c.drawings) == 2]
    assert toned and all("ball" in c.name for c in toned)
    assert toned[0].drawings[1].names["en"] == f"{toned[0].name}: light"
    assert len(data.pictures) == 16 + len(toned) and len(data.others) == 16
    assert data.categories == ["flags", "things & toys"]


def test_the_split_depends_on_its_seed_alone_and_fewer_concepts_keep_the_held_out(folder):
    whole = load_emoji(EmojiConfig(path=folder, test_share=0.25))
    few = load_emoji(EmojiConfig(path=folder, test_share=0.25, max_concepts=3))
    other = load_emoji(EmojiConfig(path=folder, test_share=0.25, split_seed=1))
    assert [c.code for c in few.test] == [c.code for c in whole.test] and len(few.train) == 3
    assert [c.code for c in other.test] != [c.code for c in whole.test]
    again = load_emoji(EmojiConfig(path=folder, test_share=0.25))
    assert again.fingerprint() == whole.fingerprint() != few.fingerprint() != other.fingerprint()


def test_as_images_they_have_categories_and_names_and_are_read_once(folder):
    config = ImageConfig(source="emoji", path=folder, size=(8, 8), test_share=0.25)
    data = load_images(config)
    assert data.labels == ["flags", "things & toys"]
    parts = data.train, data.validation, data.test
    assert [len(part) for part in parts] == [10, 2, 4]
    names = [name for part in parts for name in part.texts]
    assert len(set(names)) == 16 and {"red ball", "grey flag"} <= set(names)
    red = next(i for i, name in enumerate(data.train.texts) if name.startswith("red"))
    first = data.train[red]
    assert first["image"].shape == (8, 8, 3) and first["label"] == data.train.labels[red]
    assert np.abs(first["image"].astype(int) - [220, 30, 30]).sum(axis=2).min() < 12
    assert data.train[red]["image"] is first["image"]


def test_captions_are_made_of_the_names_and_tags_and_follow_the_draw(folder):
    concept = load_emoji(EmojiConfig(path=folder)).train[0]
    say = lambda seed: emoji.caption(concept, concept.drawings[0], np.random.default_rng(seed))  # noqa: E731
    captions = [say(i) for i in range(300)]
    assert captions == [say(i) for i in range(300)]
    names = concept.drawings[0].names
    assert any(names["en"] in c for c in captions) and any(names["fr"] in c for c in captions)
    assert any("drawing of" in c for c in captions) and any("dessin" in c for c in captions)
    english = [c for c in captions if names["en"] in c]
    assert sum(any(f", {t}" in c for t in concept.tags["en"]) for c in english) / len(english) > 0.2


def test_sided_and_written_things_are_not_mirrored():
    make = lambda name, category: emoji.Concept(  # noqa: E731
        "1", category, {"en": ()}, (emoji.Drawing(0, {"en": name}),), 0
    )
    assert make("grinning face", "smileys & emotion").mirrored
    assert make("cat", "animals & nature").mirrored
    assert not make("face looking left", "smileys & emotion").mirrored
    assert not make("flag: France", "flags").mirrored
    assert not make("zzz", "smileys & emotion").mirrored


def test_plain_pictures_stand_on_white_and_keep_their_colours():
    pictures = np.zeros((2, 64, 64, 4), np.uint8)
    pictures[0, 16:48, 16:48] = (200, 100, 50, 255)
    pictures[1] = (100, 50, 25, 127)  # half of (200, 100, 50)
    found = plain(pictures, (16, 32))
    assert found.shape == (2, 16, 32, 3) and found.dtype == np.uint8
    assert (found[0, 8, 16] == (200, 100, 50)).all() and (found[0, 0, 0] == 255).all()
    np.testing.assert_allclose(found[1, 8, 16], np.array([100, 50, 25]) + 128, atol=1)
    # Enlarged and reduced pictures keep their mean.
    rng = np.random.default_rng(0)
    pictures = np.full((1, 64, 64, 4), 255, np.uint8)
    pictures[0, 8:56, 8:56, :3] = rng.integers(0, 255, (48, 48, 3))
    for size in ((32, 32), (24, 24), (64, 64), (128, 128)):
        mean = plain(pictures, size).astype(float).mean()
        assert mean == pytest.approx(pictures[..., :3].mean(), abs=1.5)
    np.testing.assert_array_equal(plain(pictures, (64, 64)), pictures[..., :3])


def test_variations_follow_the_draw_and_without_strength_only_the_paper_changes():
    pictures = np.zeros((4, 64, 64, 4), np.uint8)
    pictures[:, 20:44, 10:30] = (50, 150, 250, 255)
    draw = lambda seed, strength, mirrored=False: varied(  # noqa: E731
        pictures, (32, 32), np.full(4, mirrored), np.random.default_rng(seed), strength
    )
    np.testing.assert_array_equal(draw(0, 1.0), draw(0, 1.0))
    assert (draw(0, 1.0) != draw(1, 1.0)).any()
    still = draw(0, 0.0)
    assert (still[:, 16, 10] == (50, 150, 250)).all()
    both = draw(3, 0.0, True)
    sides = {bool((row[16, 10] == (50, 150, 250)).all()) for row in both}
    assert sides == {True, False}
