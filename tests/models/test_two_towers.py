"""Two towers: where a text is pooled, padding, projections, the published sizes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
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
ROWS = jnp.array([[2, 9, 19, 7, 7, 7], [2, 7, 19, 4, 7, 0]])


def tower(config=TINY):
    model = build(config)
    images = jnp.zeros((1, 8, 12, 3))
    return model, model.init(jax.random.key(0), images, ROWS)


def texts(model, variables, rows):
    return model.apply(variables, jnp.asarray(rows), method="encode_texts")


def test_case_49_a_text_is_its_state_at_the_first_end_token():
    model, variables = tower()
    found = texts(model, variables, ROWS)
    # A larger id before the end, padding with the end token, an end token that comes again.
    for row, length in zip(ROWS, (4, 2), strict=True):
        states = model.apply(
            variables, row[None], method=lambda m, t: m.text_projection(m.text.states(t)[0])
        )
        want = states[length - 1] / jnp.linalg.norm(states[length - 1])
        index = 0 if length == 4 else 1
        np.testing.assert_allclose(found[index], want, atol=1e-6)


def test_case_49_what_follows_the_end_changes_nothing():
    model, variables = tower()
    row = [2, 9, 19, 7]
    want = texts(model, variables, [row])
    for after in ([7, 7], [0, 0], [19, 3]):
        np.testing.assert_allclose(texts(model, variables, [row + after]), want, atol=1e-6)


def test_highest_and_last_places():
    model, variables = tower(replace(TINY, text_pool="highest"))
    row = [2, 9, 19, 7, 0]
    np.testing.assert_allclose(
        texts(model, variables, [row]), texts(model, variables, [[2, 9, 19]]), atol=1e-6
    )
    last, _ = tower(replace(TINY, text_pool="last"))
    eos = build(TINY)
    np.testing.assert_allclose(
        texts(last, variables, [row[:4]]), texts(eos, variables, [row[:4]]), atol=1e-6
    )


def test_a_tower_that_reads_both_ways_sees_what_follows_unless_it_is_hidden():
    config = replace(TINY, text=replace(TINY.text, mask="prefix"))
    model, variables = tower(config)
    run = lambda row, seen: model.apply(  # noqa: E731
        variables, jnp.array([row]), None, jnp.array([seen]), method="encode_texts"
    )
    all_of = [True] * 5
    a, b = run([2, 9, 7, 3, 4], all_of), run([2, 9, 7, 3, 5], all_of)
    assert np.abs(a - b).max() > 1e-4
    hidden = [True] * 4 + [False]
    np.testing.assert_array_equal(run([2, 9, 7, 3, 4], hidden), run([2, 9, 7, 3, 5], hidden))


def test_vectors_have_length_1_and_projections_no_bias():
    model, variables = tower()
    images = jax.random.normal(jax.random.key(1), (3, 8, 12, 3))
    out = model.apply(variables, images, ROWS)
    assert out["image"].shape == (3, 6) and out["text"].shape == (2, 6)
    for name in ("image", "text"):
        np.testing.assert_allclose(jnp.linalg.norm(out[name], axis=1), 1.0, atol=1e-6)
        assert variables["params"][f"{name}_projection"].keys() == {"kernel"}
    assert float(variables["params"]["scale"]) == pytest.approx(2.659260, abs=1e-6)
    assert float(out["scale"]) == pytest.approx(1 / 0.07, rel=1e-6) and out["bias"] == 0


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
