"""Decoders with mixers and experts: the same losses and gradients on any mesh, with what the
experts tell; a token's experts do not depend on its batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.layers.block_config import ExpertsConfig, MixerConfig
from transformer_lab.models import flops_a_token, rules_of
from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.ops.losses import token_metrics
from transformer_lab.training.config import MeshConfig
from transformer_lab.training.mesh import batch_sharding, make_mesh, shardings
from transformer_lab.training.state import loss_and_gradient

SIZES = {
    "layers": 2, "width": 16, "heads": 2, "head_dim": 8, "feed_forward_width": 24, "vocab_size": 11,
    "positions": "none", "norm_place": "pre", "norm": "rms_norm", "dropout": 0.0, "max_length": 12,
    "activation": "swiglu",
}  # fmt: skip
MIXER = MixerConfig(inner_width=16, state=4, step_rank=3, state_heads=2, chunk=4)
RNG = np.random.default_rng(0)
BATCH = {
    "tokens": jnp.asarray(RNG.integers(0, 11, (8, 10))),
    "targets": jnp.asarray(RNG.integers(0, 11, (8, 10))),
    "mask": jnp.asarray(RNG.random((8, 10)) < 0.8),
    "segments": jnp.asarray(np.sort(RNG.integers(0, 3, (8, 10)), axis=1)[:, ::-1].copy()),
}


def decoder(kinds, **experts):
    """A decoder whose layers are of these kinds."""
    settings = ExpertsConfig(count=4, top_k=2, width=8, **experts)
    return DecoderConfig(**SIZES, layer_kinds=kinds, mixer=MIXER, experts=settings)


def loss_of(config):
    def loss(params, batch, key):
        inputs = batch["tokens"], None, batch["segments"], None
        scores = Decoder(config).apply({"params": params}, *inputs, labels=batch["targets"])
        return {"loss": token_metrics(scores, batch["targets"], batch["mask"])["loss"]}

    return loss


def computed(config, params, sizes, parts=1):
    """Metrics and gradient of the whole batch on a mesh of these sizes, in micro-batches."""
    mesh = make_mesh(MeshConfig(**sizes), int(np.prod([*sizes.values()])))
    laid = shardings(params, mesh, "", rules_of(config))
    step = jax.jit(
        partial(loss_and_gradient, loss_of(config), key=jax.random.key(1), parts=parts, mesh=mesh),
        in_shardings=(laid, batch_sharding(mesh)),
    )
    found = step(jax.device_put(params, laid), jax.device_put(BATCH, batch_sharding(mesh)))
    return jax.tree.map(np.asarray, found)


CASES = {
    "state spaces": (("mamba/none", "mamba2"), {}, {"data": 2, "fsdp": 2, "tensor": 2}, 2),
    "linear": (("retention", "rwkv/shifted"), {}, {"data": 4, "fsdp": 2}, 1),
    "places": (
        ("attention/experts",), {"capacity_factor": 1.0}, {"data": 2, "expert": 2, "fsdp": 2}, 2
    ),
    "sorted": (
        ("attention/experts", "gated/experts"), {"shared": 1, "renormalize": False},
        {"expert": 4, "data": 2}, 1,
    ),
}  # fmt: skip


@pytest.mark.each_run("state spaces")
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_on_a_mesh_are_those_of_one_device(case):
    kinds, experts, sizes, parts = CASES[case]
    config = decoder(kinds, **experts)
    params = draw(Decoder(config), BATCH["tokens"], size=0.3)["params"]
    pairs, gradient = computed(config, params, {"data": 1})
    others, same = computed(config, params, sizes, parts)
    if experts:
        tokens = 2 * (BATCH["segments"] > 0).sum()  # of two layers
        assert pairs["expert_balance"][1] == pairs["expert_dropped"][1] == tokens
        dropped, of = pairs["expert_dropped"]
        assert (dropped > 0) == ("capacity_factor" in experts) and dropped < of
        assert 0 < pairs["router_entropy"][0] / tokens < np.log(4)
    for name in pairs:
        if name != "expert_load_variation" or parts == 1:  # no sum: each call says its own
            np.testing.assert_allclose(others[name], pairs[name], rtol=1e-5, err_msg=name)
    leaves = jax.tree_util.tree_flatten_with_path(gradient)[0]
    for (path, theirs), ours in zip(leaves, jax.tree.leaves(same), strict=True):
        size = max(np.abs(theirs).max(), 1e-3)
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * size, err_msg=str(path))


def test_a_tokens_output_does_not_depend_on_the_rows_beside_it():
    tokens = BATCH["tokens"]
    for experts in ({}, {"capacity_factor": 0.5}):
        model = Decoder(decoder(("attention/experts",), **experts))
        run = jax.jit(lambda p, m=model: (m.apply(p, tokens), m.apply(p, tokens[2:3])))
        whole, alone = run(draw(model, tokens, size=0.3))
        np.testing.assert_allclose(alone, whole[2:3], atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_k": 5}, "top_k = 5 must be at least 1, and at most model.experts.count = 4"),
        ({"top_k": 0}, "top_k"),
        ({"routing": "token"}, "tokens"),
        ({"routing": "experts"}, "capacity_factor"),
        ({"capacity_factor": -1.0}, "capacity_factor"),
        ({"way": "places"}, "capacity_factor"),
        ({"jitter": 1.0}, "jitter"),
    ],
)
def test_settings_of_experts_that_cannot_be_are_refused_by_name(settings, words):
    with pytest.raises(LabError, match=words):
        ExpertsConfig(**({"count": 4, "top_k": 2} | settings))


def test_only_the_experts_that_work_are_counted_as_active():
    config = decoder(("attention/experts",))
    shapes = jax.eval_shape(Decoder(config).init, jax.random.key(0), BATCH["tokens"])["params"]
    expert = 3 * 16 * 8
    attention = 4 * 16 * 16
    active = 2 * (attention + 2 * expert + 16 * 4) + 11 * 16
    flops = 6 * active + 12 * 2 * 2 * 8 * 10
    assert flops_a_token(config, shapes, 10) == flops
