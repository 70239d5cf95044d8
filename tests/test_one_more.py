"""One more family is one more file: a gated linear recurrence, in a folder of one's own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.tiny import read_metrics
from transformer_lab import models
from transformer_lab.commands.inspect import model_rows
from transformer_lab.errors import LabError
from transformer_lab.models import base
from transformer_lab.training import runs
from transformer_lab.training.config import resolve

FAMILY = '''"""Tokens to logits by a gated linear recurrence, h = a h + (1 - a) v (Martin 2018)."""

from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_lab.layers.basic import Dense, LayerNorm
from transformer_lab.layers.embedding import Embedding, check_length
from transformer_lab.layers.scanned import make_layers, run_layers
from transformer_lab.layers.told import tell
from transformer_lab.models.model import Model
from transformer_lab.models.decoder import example_inputs as example_inputs


@dataclass(frozen=True)
class Config:
    """Layers of width H; `openness` is the coefficient of the mean gate in the loss."""

    layers: int = 2
    width: int = 16
    vocab_size: int | None = None
    max_length: int = 64
    openness: float = 0.1
    scan_layers: bool = False
    remat: str = "off"


class Layer(nn.Module):
    """x + W (h * silu(g)), where h forgets what came before a fresh segment."""

    config: Config

    def setup(self):
        self.norm, self.out = LayerNorm(1e-6, True), Dense(self.config.width)
        self.gates = Dense(3 * self.config.width)

    def __call__(self, x, fresh, real):
        x, _, keep = self.mix(x, fresh, jnp.zeros_like(x[:, 0]))
        count = real.sum(dtype=jnp.float32)
        total = jnp.where(real, keep.mean(axis=-1), 0.0).sum()
        tell(self, "openness", total, count, self.config.openness)
        return x

    def mix(self, x, fresh, state):
        keep, value, gate = jnp.split(self.gates(self.norm(x)), 3, axis=-1)
        keep = jax.nn.sigmoid(keep)
        held = jnp.where(fresh[..., None], 0.0, keep)
        pair = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])
        decay, found = jax.lax.associative_scan(pair, (held, (1 - keep) * value), axis=1)
        found = found + decay * state[:, None]
        return x + self.out(found * jax.nn.silu(gate)), found[:, -1], keep


class LinearRecurrence(Model):
    """A language model, as `models.base.LanguageModel` has it."""

    config: Config

    def setup(self):
        cfg = self.config
        self.embedding = Embedding(cfg.vocab_size, cfg.width, cfg.width**-0.5)
        make_layers(self, [partial(Layer, cfg)] * cfg.layers)

    def __call__(self, tokens, dropout_key=None, segments=None, labels=None):
        check_length(self.config, tokens.shape[1])
        real = jnp.ones(tokens.shape, bool) if segments is None else segments != 0
        x = run_layers(self, self.embedding(tokens), lambda i: (starts(tokens, segments), real))
        return self.embedding.logits(x, labels)

    def prefill(self, tokens, segments, length):
        zeros = jnp.zeros((len(tokens), self.config.width))
        return self.run(tokens, starts(tokens, segments), [zeros] * self.config.layers)

    def step(self, tokens, cache):
        return self.run(tokens, jnp.zeros(tokens.shape, bool), cache["states"])

    def run(self, tokens, fresh, states):
        x, last = self.embedding(tokens), []
        for layer, state in zip(self.layer, states, strict=True):
            x, state, _ = layer.mix(x, fresh, state)
            last.append(state)
        return self.embedding.logits(x), {"states": last}


def starts(tokens, segments):
    """True at the first token of each segment."""
    if segments is None:
        return jnp.arange(tokens.shape[1]) == jnp.zeros((len(tokens), 1), int)
    return segments != jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)


CONFIG, build = Config, LinearRecurrence
'''
CONFIG = '''"""The recurrence on made-up documents."""

from transformer_lab.training.config import default_config


def get_config(arg=""):
    """No argument is taken."""
    config = default_config(model="linear_recurrence", task="language_modeling")
    config.update(steps=6, log_every=1, eval_every=100, save_every=3, tensorboard=False)
    config.data.update(
        source="patterns", max_documents=60, validation_share=0.01, test_share=0.01
    )
    config.tokenizer.kind = "word"
    config.batch.update(rows=16, length=16)
    config.mesh.update(data=-1, fsdp=2)
    config.micro_batches = 2
    config.model.update(scan_layers=True, remat="dots")
    config.optimizer.update(learning_rate=1e-2, warmup_steps=2)
    config.task.update(samples=2, sample_prompt=4, layout="packed")
    config.decode.max_new_tokens = 6
    return config
'''
EXPERIMENT = '''"""The recurrence with and without its auxiliary loss."""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import vary


def get_experiment(scale):
    changes = {"mesh.fsdp": 1, "micro_batches": 1, "steps": 2, "task.samples": 0}
    return Experiment("CONFIG", vary("model.openness", [0.0, 0.1]), changes=changes)
'''
ROOT = Path(__file__).parents[1]


def config_of(folder, **changes) -> ConfigDict:
    """What the folder's config file gives, with changes."""
    names: dict = {}
    exec((folder / "linear.py").read_text(), names)
    config = names["get_config"]()
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with a room of its own, and the config beside it."""
    path = tmp_path_factory.mktemp("mine")
    (path / "models").mkdir()
    (path / "models" / "linear_recurrence.py").write_text(FAMILY)
    (path / "linear.py").write_text(CONFIG)
    (path / "openness.py").write_text(EXPERIMENT.replace("CONFIG", str(path / "linear.py")))
    before = list(models.__path__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSFORMER_LAB_PATH", str(path))
        yield path
    models.__path__[:] = before


@pytest.fixture(scope="module")
def trained(folder):
    """Its run on eight devices: fsdp, layers stacked, two micro-batches."""
    runs.run(config_of(folder), folder / "run")
    return folder / "run"


def test_it_trains_on_eight_devices_and_reports_what_its_layers_tell(trained):
    lines = [line for line in read_metrics(trained) if "openness" in line]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(0 < line["openness"] < 1 for line in lines)
    assert lines[-1]["openness"] < lines[0]["openness"] and lines[-1]["loss"] < lines[0]["loss"]
    results = json.loads((trained / "results.json").read_text())
    assert {"test/loss", "test/bits_per_byte", "validation/perplexity"} <= results.keys()


def test_a_stopped_run_is_resumed_bit_for_bit(folder, trained):
    stopped = folder / "stopped"
    runs.run(config_of(folder, steps=3), stopped)
    runs.run(config_of(folder), stopped)
    both = [read_metrics(path)[-1] for path in (trained, stopped)]
    assert both[0]["step"] == both[1]["step"] == 6
    found = [runs.open_run(ConfigDict(runs.stored_config(p)), p)[1] for p in (trained, stopped)]
    jax.tree.map(np.testing.assert_array_equal, *map(jax.device_get, found))


def test_it_is_opened_scores_and_generates_what_one_pass_finds_likeliest(trained):
    trainer, params = runs.open_run(ConfigDict(runs.stored_config(trained)), trained)
    task = trainer.task
    assert params.keys() == {"embedding", "layer_0", "layer_1"}
    prompts = [task.prompt_ids(text) for text in ("a b", "c")]
    for prompt, (found,) in zip(prompts, task.generator()(params, prompts), strict=True):
        row = [*prompt, *found.ids]
        logits = task.model.apply({"params": params}, jnp.asarray([row[:-1]]))
        banned = task.generator().config.banned_tokens
        logits = np.array(logits)[0, len(prompt) - 1 :]
        logits[:, list(banned)] = -np.inf
        assert logits.argmax(axis=-1).tolist() == list(found.ids)
    assert trainer.evaluate(params, "test")["loss"] > 0


def test_it_is_counted_and_a_task_that_needs_more_refuses_it_by_name(folder):
    resolved = resolve(config_of(folder, model__vocab_size=50))
    rows = {row["module"]: row["parameters"] for row in model_rows(resolved)}
    layer = 2 * 16 + 16 * 48 + 48 + 16 * 16 + 16
    assert rows["all"] == f"{50 * 16 + 2 * layer:,}"
    with pytest.raises(LabError, match=r'"linear_recurrence" does not go .* TwoTowers: it lacks'):
        models.need("linear_recurrence", base.TwoTowers)


@pytest.mark.slow
def test_it_is_swept_and_continues_a_prompt_by_the_commands(folder, trained):
    command = [sys.executable, "-m", "transformer_lab"]
    told = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
    sweep = ["sweep", f"--experiment={folder}/openness.py", f"--workdir={folder}/sweep"]
    found = subprocess.run([*command, *sweep], **told)
    assert len(re.findall(r"openness=0\.[01]", found.stdout)) >= 2
    found = subprocess.run([*command, "generate", f"--workdir={trained}", "--prompt=a b"], **told)
    assert found.stdout.startswith("a b")
