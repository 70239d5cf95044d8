"""A run's losses are the same numbers on every mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.ops.losses import token_metrics
from transformer_lab.tasks.base import Task
from transformer_lab.training.config import MeshConfig, OptimizerConfig, RunConfig
from transformer_lab.training.mesh import make_mesh
from transformer_lab.training.trainer import Trainer

MODEL = DecoderConfig(
    layers=3, width=32, heads=4, head_dim=8, feed_forward_width=48, vocab_size=64, max_length=16,
    positions="rope", tie_head=False, dropout=0.2, scan_layers=True, remat="nothing",
)  # fmt: skip
RUN = RunConfig(
    steps=10, micro_batches=2, optimizer=OptimizerConfig(warmup_steps=2, weight_decay=0.1)
)


class Packed(Task):
    """A language model on rows that hold two documents and padding."""

    def __init__(self, model_config):
        self.model_config, self.model = model_config, Decoder(model_config)

    def eval_batches(self, split):
        return iter(())

    def abstract_batch(self):
        return {name: ((16, 16), np.int32) for name in ("tokens", "targets", "segments")}

    def init(self, key):
        return self.model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]

    def loss(self, params, batch, key):
        inputs = batch["tokens"], key, batch["segments"]
        logits = self.model.apply({"params": params}, *inputs)
        return {"loss": token_metrics(logits, batch["targets"], batch["segments"] > 0)["loss"]}

    metrics = loss


def losses(model=MODEL, **sizes):
    """Of five steps on a mesh of these sizes."""
    devices = int(np.prod(list(sizes.values())))
    trainer = Trainer(RUN, Packed(model), make_mesh(MeshConfig(**{"data": 1, **sizes}), devices))
    rng, found = np.random.default_rng(0), []
    ends = np.sort(rng.integers(1, 17, (16, 2)), axis=1)[..., None]
    places = np.arange(16)
    segments = np.where(places < ends[:, 0], 1, np.where(places < ends[:, 1], 2, 0))
    state = trainer.init()
    for _ in range(5):
        tokens, targets = rng.integers(1, 64, (2, 16, 16), dtype=np.int32)
        batch = {"tokens": tokens, "targets": targets, "segments": segments.astype(np.int32)}
        state, metrics = trainer.train_step(state, trainer.place(batch))
        found.append(metrics["loss"])
    return np.asarray(jax.device_get(found))


@pytest.fixture(scope="module")
def alone():
    return losses()


@pytest.mark.each_run("{'data': 2, 'fsdp': 2, 'tensor': 2}")
@pytest.mark.parametrize(
    "sizes",
    [
        {"data": 8},
        {"fsdp": 8},
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"data": 2, "sequence": 4},
        {"slice": 2, "fsdp": 2, "expert": 2},
    ],
    ids=str,
)
def test_losses_of_packed_rows_with_dropout_scan_and_remat_do_not_depend_on_the_mesh(sizes, alone):
    np.testing.assert_allclose(losses(**sizes), alone, rtol=1e-5)
