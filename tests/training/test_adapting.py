"""What trains by each method, that the parts make the model again, and kernels in few bits."""

from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.test_language_modeling import tiny_model
from tests.tiny import make_trainer
from transformer_lab import models
from transformer_lab.errors import LabError
from transformer_lab.models.encoder import EncoderConfig, build
from transformer_lab.training.adapting import (
    NF4,
    assemble,
    dequantize,
    lora_factors,
    quantize,
    split,
)
from transformer_lab.training.config import METHODS, AdaptConfig, MeshConfig
from transformer_lab.training.mesh import make_mesh, shardings
from transformer_lab.training.sources import leaves

MODEL = EncoderConfig(
    layers=2, width=16, heads=2, head_dim=8, feed_forward_width=24, vocab_size=23, max_length=12,
    head="classes", adapter_width=4, norm_place="pre", dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
SHAPES = models.parameter_shapes("encoder", MODEL)
KEY = jax.random.key(0)
ADAPTED = METHODS[1:]


def draw(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape) / 2, jnp.float32), shapes)


def layer(i, *parts):
    return {f"encoder/layer_{i}/{part}" for part in parts}


DENSE = {
    f"{name}/{leaf}"
    for name in (
        *(f"attention/{part}" for part in ("query", "key", "value", "out")),
        *(f"feed_forward/{part}" for part in ("up", "down")),
        *(
            f"{part}_adapter/{end}"
            for part in ("attention", "feed_forward")
            for end in ("up", "down")
        ),
    )
    for leaf in ("kernel", "bias")
}
NORM = {f"{n}_norm/{leaf}" for n in ("attention", "feed_forward") for leaf in ("scale", "bias")}
HEAD = {f"{name}/{leaf}" for name in ("pooler", "classifier") for leaf in ("kernel", "bias")}
FINAL = {"encoder/final_norm/scale", "encoder/final_norm/bias"}


def both(parts):
    parts = list(parts)
    return layer(0, *parts) | layer(1, *parts)


TRAINED = {
    "head": HEAD,
    "last": HEAD | FINAL | layer(1, *DENSE, *NORM),
    "bias": HEAD
    | {"embedding_norm/bias", "encoder/final_norm/bias"}
    | both(p for p in DENSE | NORM if p.endswith("bias")),
    "adapters": HEAD
    | FINAL
    | {"embedding_norm/scale", "embedding_norm/bias"}
    | both(NORM | {p for p in DENSE if "adapter" in p}),
    "lora": HEAD
    | both(f"attention/{part}/kernel/lora_{f}" for part in ("query", "value") for f in ("a", "b")),
}


@pytest.mark.parametrize("method", ADAPTED)
def test_each_method_trains_these_paths_and_freezes_all_others(method):
    config = AdaptConfig(method=method, last_layers=1)
    trained, frozen = jax.eval_shape(lambda p: split(p, config, KEY), SHAPES)
    assert set(leaves(trained)) == TRAINED[method]
    assert set(leaves(frozen)) == set(leaves(SHAPES)) - TRAINED[method]


def test_full_trains_everything_and_hands_the_same_arrays_back():
    params = draw(SHAPES)
    trained, frozen = split(params, AdaptConfig(), KEY)
    assert trained is params and frozen == {}
    assert assemble(trained, frozen, AdaptConfig()) is params


def test_lora_of_ones_with_rank_8_and_alpha_16_changes_the_output_by_64():
    config = AdaptConfig(method="lora", rank=8, alpha=16.0)
    params = {"query": {"kernel": jnp.zeros((4, 4))}}
    trained, frozen = split(params, config, KEY)
    assert trained["query"]["kernel"]["lora_a"].shape == (4, 8)
    whole = assemble(jax.tree.map(jnp.ones_like, trained), frozen, config)
    np.testing.assert_array_equal(jnp.ones((1, 4)) @ whole["query"]["kernel"], np.full((1, 4), 64))


@pytest.mark.parametrize("method", METHODS)
def test_step_0_equals_the_base_bit_for_bit(method):
    config, params = AdaptConfig(method=method, dropout=0.5), draw(SHAPES)
    whole = assemble(*split(params, config, KEY), config, jax.random.key(3))
    assert jax.tree.structure(whole) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, whole, params)


@pytest.mark.each_run("nf4")
@pytest.mark.parametrize("base", ["float32", "nf4"])
def test_merged_equals_unmerged_with_alpha_not_rank_under_jit_on_eight_devices(base):
    """Beside x W + alpha / rank (x a) b, as the paper computes it."""
    config = AdaptConfig(
        method="lora", rank=3, alpha=7.0, targets=r"(query|down)/kernel$", base=base
    )
    model, mesh = build(MODEL), make_mesh(MeshConfig(2, 2, 2))
    whole = jax.jit(lambda t, f: assemble(t, f, config))
    trained, frozen = jax.jit(lambda p: split(p, config, KEY))(draw(SHAPES))
    trained = draw(jax.eval_shape(lambda: trained), 1)
    merged = whole(trained, frozen)
    x = np.asarray(draw(jax.ShapeDtypeStruct((5, 24), jnp.float32), 2))
    a, b = lora_factors(trained)[0]["encoder/layer_1/feed_forward/down/kernel"]
    down = leaves(whole(jax.tree.map(lambda t: 0 * t, trained), frozen))
    want = x @ down["encoder/layer_1/feed_forward/down/kernel"] + 7 / 3 * (x @ a) @ b
    got = x @ leaves(merged)["encoder/layer_1/feed_forward/down/kernel"]
    np.testing.assert_allclose(got, want, atol=2e-5)
    tokens = jnp.array([[3, 7, 1, 9, 4]])
    places = shardings({"params": trained, "frozen": frozen}, mesh)
    split_up = jax.device_put((trained, frozen), (places["params"], places["frozen"]))
    specs = {s.spec for s in jax.tree.leaves(places["params"])}
    assert len(specs) > 1
    run = jax.jit(lambda t, f: model.apply({"params": assemble(t, f, config)}, tokens)["logits"])
    want = jax.jit(model.apply)({"params": merged}, tokens)["logits"]
    np.testing.assert_allclose(run(*split_up), want, atol=2e-5)


def test_parts_of_a_kernel_lie_as_the_kernel():
    config = AdaptConfig(method="lora", targets=r"(query|out)/kernel$", base="nf4", rank=4)
    tree = dict(zip("tf", jax.eval_shape(lambda p: split(p, config, KEY), SHAPES), strict=True))
    placed = leaves(shardings(tree, make_mesh(MeshConfig(1, 2, 4))))
    at = lambda path: tuple(placed[path].spec)  # noqa: E731
    query, out = (f"encoder/layer_0/attention/{part}/kernel" for part in ("query", "out"))
    assert at(f"t/{query}/lora_a") == ("fsdp", None) and at(f"t/{query}/lora_b") == (None, "tensor")
    assert at(f"t/{out}/lora_a") == ("tensor", None) and at(f"t/{out}/lora_b") == (None, "fsdp")
    assert at(f"f/{query}/nf4") == ("fsdp", "tensor")
    assert at(f"f/{query}/absmax") == (None, "tensor")  # one block of 16 inputs


def test_lora_dropout_takes_out_whole_input_features_and_keeps_the_mean():
    config = AdaptConfig(method="lora", rank=2, alpha=2.0, dropout=0.25)
    trained, frozen = split({"query": {"kernel": jnp.zeros((400, 3))}}, config, KEY)
    trained = jax.tree.map(jnp.ones_like, trained)
    kernel = assemble(trained, frozen, config, jax.random.key(1))["query"]["kernel"]
    rows = np.unique(np.asarray(kernel), axis=0)
    np.testing.assert_allclose(rows, [[0] * 3, [2 / 0.75] * 3], rtol=1e-6)
    assert abs(float(kernel.mean()) / 2 - 1) < 0.1
    other = assemble(trained, frozen, config, jax.random.key(2))["query"]["kernel"]
    assert (np.asarray(other) != kernel).any()
    np.testing.assert_array_equal(assemble(trained, frozen, config)["query"]["kernel"], 2.0)


@pytest.mark.each_run("lora")
@pytest.mark.parametrize("method", ["last", "bias", "lora"])
def test_frozen_leaves_have_no_gradient_and_no_optimizer_state(method):
    """Two steps of Adam: its moments are those of the trained leaves, and nothing else moves."""
    config = tiny_model(adapt__method=method)
    config.adapt.last_layers = 1
    trainer = make_trainer(config, 1)
    state, batches = trainer.init(), trainer.task.train_batches()
    first, before = trainer.whole(state), jax.device_get(state)
    for _ in range(2):
        state, metrics = trainer.train_step(state, trainer.place(next(batches)))
    batches.close()
    trained = set(leaves(state.params))
    moments = [path.split("/", 2)[2] for path in leaves(state.opt_state) if "/mu/" in f"/{path}"]
    assert {path.removeprefix("mu/") for path in moments} == trained
    assert len(jax.tree.leaves(state.opt_state)) == 2 * len(trained) + 2  # and two counts
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.frozen), before.frozen)
    assert metrics["grad_norm"] > 0
    moved = jax.tree.map(lambda a, b: (a != b).any(), leaves(trainer.whole(state)), leaves(first))
    names = {path.replace("/lora_a", "").replace("/lora_b", "") for path in trained}
    assert {path for path, is_other in moved.items() if is_other} <= names
    assert sum(map(bool, moved.values())) > len(names) / 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "lorra"}, 'did you mean "lora"'),
        ({"method": "lora", "base": "int4"}, "adapt.base"),
        ({"method": "lora", "rank": 0}, "adapt.rank = 0"),
        ({"method": "lora", "alpha": 0.0}, "adapt.alpha"),
        ({"method": "lora", "dropout": 1.0}, "adapt.dropout"),
        ({"method": "last", "last_layers": 0}, "adapt.last_layers"),
        ({"base": "nf4"}, "adapt.method that freezes"),
        ({"method": "head", "train": "classifire/"}, "classifire/"),
        ({"method": "lora", "targets": "qurey/kernel"}, "qurey/kernel"),
        ({"method": "lora", "targets": "query/bias"}, "query/bias, which is no matrix"),
        ({"method": "last", "last_layers": 3}, "encoder/ has 2 layers"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_it(changes, words):
    with pytest.raises(LabError, match=words) as info:
        split(SHAPES, AdaptConfig(**changes), KEY)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(("method", "words"), [("adapters", "adapter_width"), ("bias", "bias")])
def test_a_model_without_the_parts_of_a_method_is_refused(method, words):
    with pytest.raises(LabError, match=words):
        split({"query": {"kernel": jnp.ones((2, 2))}}, AdaptConfig(method=method), KEY)


RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(192, 10)).astype(np.float32)
KERNEL[64:128, 3] = 0.0  # a block, and
KERNEL[:, 7] = 0.0  # a column that has no magnitude
# Half the widest gap between two levels, that from -1 to the next: 0.5 * (1 - 0.6962).
NF4_BOUND = (1 - 0.6961928009986877) / 2


def test_the_nf4_levels_are_the_quantiles_of_the_normal_distribution():
    """Dettmers 2023, section 3: 8 and 9 quantiles for the halves, normalised, with one zero."""
    quantile, offset = NormalDist().inv_cdf, 0.9677083
    upper = [quantile(p) for p in np.linspace(offset, 0.5, 9)[:-1]]
    lower = [-quantile(p) for p in np.linspace(offset, 0.5, 8)[:-1]]
    want = np.sort([0.0, *upper, *lower]) / max(upper)
    np.testing.assert_allclose(NF4, want, atol=2e-6)


def test_nf4_takes_the_nearest_level_of_each_block_of_64():
    blocks = KERNEL.reshape(3, 64, 10)
    absmax = np.abs(blocks).max(axis=1, keepdims=True)
    scaled = blocks / np.where(absmax > 0, absmax, 1)
    nearest = np.abs(scaled[..., None] - NF4).argmin(axis=-1)
    want = (NF4[nearest] * absmax).reshape(KERNEL.shape)
    packed = quantize(jnp.asarray(KERNEL), "nf4")
    got = np.asarray(dequantize(packed))
    np.testing.assert_array_equal(got, want)
    assert (np.abs(got - KERNEL).reshape(blocks.shape) <= NF4_BOUND * absmax + 1e-6).all()
    assert packed["nf4"].shape == (96, 10) and packed["nf4"].dtype == jnp.uint8


def test_int8_rounds_to_the_nearest_of_255_steps_of_each_column():
    absmax = np.abs(KERNEL).max(axis=0, keepdims=True)
    packed = quantize(jnp.asarray(KERNEL), "int8")
    got = np.asarray(dequantize(packed))
    assert (np.abs(got - KERNEL) <= absmax / 254 * (1 + 1e-4)).all()
    assert packed["int8"].dtype == jnp.int8 and np.abs(packed["int8"]).max() == 127
    np.testing.assert_array_equal(got[:, 7], 0.0)


@pytest.mark.parametrize("rows", [2, 64, 66, 130])
def test_a_last_block_may_be_short(rows):
    kernel = jnp.asarray(RNG.normal(size=(rows, 3)), jnp.float32)
    got = jax.jit(lambda kernel: dequantize(quantize(kernel, "nf4")))(kernel)
    assert got.shape == kernel.shape
    tail = kernel[rows // 64 * 64 :] if rows % 64 else kernel[-64:]
    error = np.abs(got - kernel)[-len(tail) :].max(axis=0)
    assert (error <= NF4_BOUND * np.abs(tail).max(axis=0) + 1e-6).all()


@pytest.mark.parametrize(
    ("base", "numbers"),
    [
        ("float32", 4 * (128 * 96 + 20 * 96 + 96)),
        ("bfloat16", 2 * (128 * 96 + 20 * 96) + 4 * 96),
        ("int8", 128 * 96 + 4 * 96 + 4 * (20 * 96 + 96)),
        ("nf4", 64 * 96 + 4 * 2 * 96 + 4 * (20 * 96 + 96)),
    ],
)
def test_a_frozen_tree_takes_the_bytes_of_its_kind_and_comes_back_near(base, numbers):
    params = {
        "up": {"kernel": KERNEL[:128, :1] @ np.ones((1, 96), np.float32), "bias": np.ones(96)},
        "embedding": {"embedding": np.ones((20, 96))},
        "query": {"kernel": np.ones((4, 4))},
    }
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    config = AdaptConfig(method="head", train="query", base=base)
    trained, frozen = split(params, config, jax.random.key(0))
    assert sum(x.nbytes for x in jax.tree.leaves(frozen)) == numbers
    whole = assemble(trained, frozen, config)
    assert jax.tree.structure(whole) == jax.tree.structure(params)
    assert {x.dtype.name for x in jax.tree.leaves(whole)} == {"float32"}
    bounds = {"float32": 0, "bfloat16": 2**-8, "int8": 1 / 254, "nf4": NF4_BOUND}
    scale = np.abs(params["up"]["kernel"]).max()
    error = np.abs(whole["up"]["kernel"] - params["up"]["kernel"]).max() / scale
    assert bounds[base] / 4 <= error <= bounds[base] * (1 + 1e-4)


def test_an_odd_number_of_inputs_stays_float32_in_nf4():
    params = {"up": {"kernel": jnp.ones((5, 4))}, "head": {"kernel": jnp.ones((2, 2))}}
    config = AdaptConfig(method="head", train="head/", base="nf4")
    _, frozen = split(params, config, jax.random.key(0))
    assert frozen["up"]["kernel"].dtype == jnp.float32
