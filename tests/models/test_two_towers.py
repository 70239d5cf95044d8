"""Two towers: where a text is pooled, padding, projections, the published sizes."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from transformer_lab.errors import LabError
from transformer_lab.models import costs
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.models.presets import TABLES
from transformer_lab.models.two_towers import TwoTowersConfig, build
from transformer_lab.models.vision import VisionConfig
from transformer_lab.training.config import default_config, resolve

SIZES = {"layers": 1, "heads": 2, "head_dim": 4, "feed_forward_width": 12}
TINY = TwoTowersConfig(
    image=VisionConfig(image_size=(8, 12), patch_size=(4, 4), width=12, head="none", **SIZES),
    text=DecoderConfig(vocab_size=20, width=8, max_length=10, dropout=0.0, **SIZES),
    projection=6,
    eos_id=7,
)
ROWS = np.array([[2, 9, 19, 7, 7, 7], [2, 7, 19, 4, 7, 0]])
IMAGES = np.float32(np.random.default_rng(1).normal(size=(3, 8, 12, 3)))


@cache
def tower(**changes):
    """A model, its variables, and the compiled vectors of texts (and of what is seen of them)."""
    model = build(replace(TINY, **changes))
    variables = jax.jit(model.init)(jax.random.key(0), IMAGES[:1], ROWS)
    texts = lambda rows, seen=None: model.apply(variables, rows, None, seen, method="encode_texts")  # noqa: E731
    return model, variables, jax.jit(texts)


def test_case_49_a_text_is_its_state_at_the_first_end_token():
    model, variables, texts = tower()
    project = lambda m, t: m.text_projection(m.text.states(t))  # noqa: E731
    states = jax.jit(lambda rows: model.apply(variables, rows, method=project))(ROWS)
    # A larger id before the end, padding with the end token, an end token that comes again.
    want = np.asarray(states)[[0, 1], [3, 1]]
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    np.testing.assert_allclose(texts(ROWS), want, atol=1e-6)


def test_case_49_what_follows_the_end_changes_nothing():
    _, _, texts = tower()
    row = [2, 9, 19, 7]
    want = texts(np.array([row]))
    found = texts(np.array([row + after for after in ([7, 7], [0, 0], [19, 3])]))
    np.testing.assert_allclose(found, np.tile(want, (3, 1)), atol=1e-6)


def test_highest_and_last_places():
    row = np.array([[2, 9, 19, 7, 0]])
    _, _, highest = tower(text_pool="highest")
    np.testing.assert_allclose(highest(row), highest(row[:, :3]), atol=1e-6)
    (_, _, last), (_, _, eos) = tower(text_pool="last"), tower()
    np.testing.assert_allclose(last(row[:, :4]), eos(row[:, :4]), atol=1e-6)


def test_a_tower_that_reads_both_ways_sees_what_follows_unless_it_is_hidden():
    _, _, texts = tower(text=replace(TINY.text, mask="prefix"))
    rows = np.array([[2, 9, 7, 3, 4], [2, 9, 7, 3, 5]])
    a, b = np.asarray(texts(rows, np.ones((2, 5), bool)))
    assert np.abs(a - b).max() > 1e-4
    np.testing.assert_array_equal(*np.asarray(texts(rows, np.tile(np.arange(5) < 4, (2, 1)))))


def test_vectors_have_length_1_and_projections_no_bias():
    model, variables, _ = tower()
    out = jax.jit(model.apply)(variables, IMAGES, ROWS)
    assert out["image"].shape == (3, 6) and out["text"].shape == (2, 6)
    for name in ("image", "text"):
        np.testing.assert_allclose(np.linalg.norm(out[name], axis=1), 1.0, atol=1e-6)
        assert variables["params"][f"{name}_projection"].keys() == {"kernel"}
    assert float(variables["params"]["scale"]) == pytest.approx(2.659260, abs=1e-6)
    assert float(out["scale"]) == pytest.approx(1 / 0.07, rel=1e-6) and out["bias"] == 0


@pytest.mark.each_run("clip_b32")
@pytest.mark.parametrize("name", TABLES["clip"])
def test_counts_of_released_towers_are_exact(name):
    preset = TABLES["clip"][name]
    groups = costs.parameter_groups("two_towers", preset.config)
    assert sum(groups.values()) == preset.published


def test_keys_of_a_tower_are_resolved_and_wrong_ones_named():
    config = default_config(model="two_towers", task="contrastive")
    config.update_from_flattened_dict({"model.image.layers": 3, "model.text.width": 64})
    found = resolve(config).model
    assert found.image.layers == 3 and found.text.width == 64 and found.text.layers == 12
    with config.unlocked():
        config.model.image.lairs = 3
    with pytest.raises(LabError, match="config.model.image.lairs is not a key.*layers"):
        resolve(config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text_pool": "end"}, "text_pool"),
        ({"image_kind": "cn"}, 'did you mean "cnn"'),
        ({"largest_scale": -1.0}, "largest_scale"),
    ],
)
def test_impossible_towers_are_refused(change, words):
    with pytest.raises(LabError, match=words):
        replace(TINY, **change)
    with pytest.raises(LabError, match="image.head"):
        replace(TINY, image=replace(TINY.image, head="classes"))
    with pytest.raises(LabError, match="cnn.head"):
        replace(TINY, image_kind="cnn", cnn=replace(TINY.cnn, head="classes"))
