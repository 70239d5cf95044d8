"""Schedules and optimizers against their formulas; learning rates by path and by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from transformer_lab import models
from transformer_lab.errors import LabError
from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.training.config import OptimizerConfig
from transformer_lab.training.optimizer import (
    fitted,
    make_optimizer,
    parse_multipliers,
    path_mask,
    rate_factors,
    schedule,
)
from transformer_lab.training.sources import leaves


def test_inverse_sqrt_is_the_papers_schedule():
    width, warmup = 512, 4000
    config = OptimizerConfig(learning_rate=(width * warmup) ** -0.5, warmup_steps=warmup)
    rate = schedule(config, 100_000)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        want = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        np.testing.assert_allclose(rate(step), want, rtol=1e-5)


def test_flat_inverse_sqrt_begins_at_the_peak():
    """T5's 1 / sqrt(max(n, k)) (Raffel 2020, section 3.1.2) of k = 10,000 steps, whose peak is 0.01
    as PaLM's, which decays from there by the root of the step."""
    options = {"learning_rate": 0.01, "schedule": "flat_inverse_sqrt", "warmup_steps": 10_000}
    rate = schedule(OptimizerConfig(**options), 100_000)
    for step in (1, 9_999, 10_000, 10_001, 40_000):
        np.testing.assert_allclose(rate(step), max(step, 10_000) ** -0.5, rtol=1e-5)


def test_a_warm_up_of_more_than_half_a_run_becomes_a_tenth_of_it():
    config = OptimizerConfig(warmup_steps=50, schedule="constant", learning_rate=1.0)
    assert fitted(config, 100) == fitted(config, 0) == config
    assert fitted(config, 99).warmup_steps == 9 and fitted(config, 5).warmup_steps == 0
    assert schedule(fitted(config, 10), 10)(1) == 1.0


@pytest.mark.parametrize(("name", "half"), [("cosine", 0.5), ("linear", 0.5)])
def test_decays_start_at_the_peak_and_end_in_the_last_step(name, half):
    config = OptimizerConfig(learning_rate=2.0, schedule=name, warmup_steps=10, end_factor=0.1)
    rate = schedule(config, 110)
    np.testing.assert_allclose(
        [rate(5), rate(10), rate(60), rate(110)], [1.0, 2.0, 2 * (0.1 + 0.9 * half), 0.2], rtol=1e-5
    )


def test_constant_and_no_warmup():
    rate = schedule(OptimizerConfig(learning_rate=0.5, schedule="constant", warmup_steps=0), 10)
    assert [float(rate(s)) for s in (1, 10)] == [0.5, 0.5]


def test_adam_with_weight_decay_takes_the_written_out_step():
    config = OptimizerConfig(
        learning_rate=0.1, schedule="constant", warmup_steps=1, weight_decay=0.3, epsilon=1e-9
    )
    optimizer = make_optimizer(config, schedule(config, 5))
    params = {"up": {"kernel": jnp.array([2.0]), "bias": jnp.array([2.0])}}
    state = optimizer.init(params)
    gradients = {"up": {"kernel": jnp.array([0.5]), "bias": jnp.array([0.5])}}
    updates, _ = optimizer.update(gradients, state, params)
    # Bias-corrected Adam's first step is the gradient's sign.
    np.testing.assert_allclose(updates["up"]["kernel"], -0.1 * (1 + 0.3 * 2.0), rtol=1e-5)
    np.testing.assert_allclose(updates["up"]["bias"], -0.1, rtol=1e-5)


def test_a_pattern_that_matches_nothing_is_an_error_that_names_it():
    with pytest.raises(LabError, match="kernle"):
        path_mask({"up": {"kernel": 1}}, "kernle$")


@pytest.mark.parametrize(("field", "value"), [("schedule", "cosin"), ("name", "adamm")])
def test_unknown_names_are_refused_with_the_nearest(field, value):
    config = OptimizerConfig(**{field: value})
    with pytest.raises(LabError, match="did you mean"):
        make_optimizer(config, schedule(config, 10))


def test_muon_orthogonalises_the_momentum_of_kernels_and_is_nesterovs_adam_elsewhere():
    """Jordan 2024: five Newton-Schulz steps; Liu 2025, eq. 4: times 0.2 sqrt(max(in, out))."""
    config = OptimizerConfig(
        name="muon", learning_rate=0.1, schedule="constant", warmup_steps=1, weight_decay=0.3
    )
    rng = np.random.default_rng(0)
    shapes = {
        "up": {"kernel": (6, 4), "bias": (4,)},
        "embedding": {"embedding": (5, 4)},
        # The experts of a layer, and those of two stacked layers: a matrix for each of them.
        "decoder": {
            "layer_0": {"feed_forward": {"up": (3, 6, 4), "router": (6, 3)}},
            "layers": {"feed_forward": {"down": (2, 3, 4, 6)}},
        },
    }
    draw = lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    leaf = lambda x: isinstance(x, tuple)  # noqa: E731
    params, gradients = (jax.tree.map(draw, shapes, is_leaf=leaf) for _ in range(2))
    optimizer = make_optimizer(config, schedule(config, 5))
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    updates, gradients, params = (
        flatten_dict(jax.tree.map(np.asarray, tree), sep="/")
        for tree in (updates, gradients, params)
    )
    experts = "decoder/layer_0/feed_forward/up", "decoder/layers/feed_forward/down"
    for path in ("up/kernel", *experts):
        matrices = zip(
            *(tree[path].reshape(-1, *tree[path].shape[-2:]) for tree in (updates, gradients)),
            strict=True,
        )
        decay = 0.3 * (params[path] if path == "up/kernel" else 0.0 * params[path])
        decays = decay.reshape(-1, *decay.shape[-2:])
        for (update, gradient), decayed in zip(matrices, decays, strict=True):
            x = np.asarray(gradient, np.float64)
            x = x.T if len(x) > len(x.T) else x
            x /= np.linalg.norm(x)
            for _ in range(5):
                square = x @ x.T
                x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
            assert np.abs(np.linalg.svd(x)[1] - 1).max() < 0.35
            x = x if x.shape == update.shape else x.T
            np.testing.assert_allclose(update, -0.1 * (0.2 * 6**0.5 * x + decayed), atol=1e-5)
    for path in ("up/bias", "embedding/embedding", "decoder/layer_0/feed_forward/router"):
        update, gradient = updates[path], gradients[path]
        # The first step of Adam with Nesterov's momentum (Dozat 2016): b1 / (1 + b1) beyond 1.
        np.testing.assert_allclose(update, -0.1 * (1 + 0.9 / 1.9) * jnp.sign(gradient), atol=1e-5)


def test_adafactor_is_optaxs_whose_steps_are_relative_to_the_parameter():
    """Of a gradient of ones the first step is the rate times the parameter's root mean square."""
    config = OptimizerConfig(
        name="adafactor", learning_rate=0.1, schedule="constant", warmup_steps=1
    )
    optimizers = make_optimizer(config, schedule(config, 5)), optax.adafactor(0.1)
    first = {"up": {"kernel": jax.random.normal(jax.random.key(0), (130, 140))}}
    shape, found = first["up"]["kernel"].shape, []
    for optimizer in optimizers:
        params, state = first, optimizer.init(first)
        for factor in (1.0, -2.0, 0.5):
            gradient = {"up": {"kernel": jnp.full(shape, factor)}}
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
            found.append(params["up"]["kernel"])
    np.testing.assert_allclose(found[:3], found[3:], rtol=1e-6)
    kernel = first["up"]["kernel"]
    size = float(jnp.sqrt(jnp.square(kernel).mean()))
    np.testing.assert_allclose(found[0], kernel - 0.1 * size, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adam", "sgd", "adafactor", "lion"])
def test_every_optimizer_lowers_a_quadratic(name):
    config = OptimizerConfig(name=name, learning_rate=0.05, schedule="constant", warmup_steps=1)
    optimizer = make_optimizer(config, schedule(config, 100))
    params = {"up": {"kernel": jnp.full((2, 3), 2.0)}}
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for _ in range(30):
        updates, state = update(params, state, params)
        params = {"up": {"kernel": params["up"]["kernel"] + updates["up"]["kernel"]}}
    assert float(jnp.abs(params["up"]["kernel"]).max()) < 1.2


@pytest.mark.parametrize(
    ("field", "value"),
    [("learning_rate", float("nan")), ("learning_rate", float("inf")), ("b1", 1.5), ("b2", 1.0),
     ("b1", -0.1), ("epsilon", -1.0), ("weight_decay", float("nan"))],
)  # fmt: skip
def test_numbers_that_no_optimizer_can_use_are_refused(field, value):
    with pytest.raises(LabError, match=f"^optimizer.{field} = {value} "):
        OptimizerConfig(**{field: value})


MODEL = EncoderConfig(
    layers=3, width=16, heads=2, head_dim=8, feed_forward_width=24, vocab_size=23, head="classes"
)
SHAPES = models.parameter_shapes("encoder", MODEL)


def factors(multipliers="", decay=1.0):
    return leaves(rate_factors(SHAPES, parse_multipliers(multipliers), decay))


def test_layer_decay_counts_from_the_head_down_to_the_embeddings():
    found = factors(decay=0.5)
    by_top = {path.split("/layer_")[0].split("/")[0] for path in found}
    assert by_top == {
        "embedding", "positions", "type_embedding", "embedding_norm", "encoder", "pooler",
        "classifier",
    }  # fmt: skip
    for path, factor in found.items():
        top = path.split("/")[0]
        if top == "encoder":
            want = 0.5 ** (3 - int(path.split("layer_")[1][0]))
        else:
            want = 1.0 if top in ("pooler", "classifier") else 0.5**4
        assert factor == want, path


def test_the_first_multiplier_found_counts_and_joins_the_decay():
    found = factors("classifier/=10; bias$=0", 0.5)
    assert found["classifier/bias"] == 10 and found["pooler/bias"] == 0
    assert found["encoder/layer_2/attention/query/kernel"] == 0.5


def test_multipliers_scale_the_whole_update_and_nothing_is_added_without_them():
    params = {"up": {"kernel": jnp.ones((2, 2))}, "head": {"kernel": jnp.ones((2, 2))}}
    config = {"learning_rate": 0.1, "schedule": "constant", "warmup_steps": 1, "weight_decay": 0.3}
    updates = []
    for extra in ({}, {"multipliers": "head=3"}):
        made = OptimizerConfig(**config, **extra)
        optimizer = make_optimizer(made, schedule(made, 5))
        state = optimizer.init(params)
        updates.append(optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)[0])
    plain, scaled = updates
    np.testing.assert_array_equal(scaled["up"]["kernel"], plain["up"]["kernel"])
    np.testing.assert_allclose(scaled["head"]["kernel"], 3 * plain["head"]["kernel"], rtol=1e-6)
    same = OptimizerConfig(**config)
    structure = jax.tree.structure(make_optimizer(same, schedule(same, 5)).init(params))
    assert len(jax.tree.leaves(state)) == structure.num_leaves


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_the_factors_of_a_kernel_decay_and_step_as_the_kernel_would(name):
    draw = lambda *shape: jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)  # noqa: E731
    factors = {"kernel": {"lora_a": draw(4, 2), "lora_b": draw(2, 3)}, "bias": draw(3)}
    params, updates = {"query": factors}, []
    for decay in (0.0, 0.5):
        config = OptimizerConfig(
            name=name, learning_rate=0.1, schedule="constant", warmup_steps=1, weight_decay=decay
        )
        optimizer = make_optimizer(config, schedule(config, 5))
        updates.append(optimizer.update(params, optimizer.init(params), params)[0]["query"])
    decayed = jax.tree.map(lambda a, b: b - a, *updates)
    np.testing.assert_array_equal(decayed["bias"], 0)
    for name in ("lora_a", "lora_b"):
        np.testing.assert_allclose(
            decayed["kernel"][name], -0.05 * factors["kernel"][name], atol=1e-6
        )


@pytest.mark.parametrize("text", ["clasifier=2", "head=2;nothing/here=1"])
def test_a_rule_that_is_found_nowhere_is_an_error_that_names_it(text):
    config = OptimizerConfig(multipliers=text)
    optimizer = make_optimizer(config, schedule(config, 5))
    named = text.split(";")[-1].split("=")[0]
    with pytest.raises(LabError, match=named):
        optimizer.init({"head": {"kernel": jnp.ones(2)}})


@pytest.mark.parametrize("text", ["head", "head=much", "=2", "head=-1", "head=inf", "head=nan"])
def test_a_rule_that_is_none_is_refused(text):
    with pytest.raises(LabError, match='is not "regex=factor"'):
        parse_multipliers(text)


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_an_impossible_layer_decay_is_refused(value):
    with pytest.raises(LabError, match="layer_decay"):
        OptimizerConfig(layer_decay=value)
