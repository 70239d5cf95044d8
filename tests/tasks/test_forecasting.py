"""Forecasts: the loss and scores by hand, scaling, and a tiny model that learns two sines."""

import csv
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.entry import command
from tests.tiny import FAST, RUN, config_of, draw, leave_run, make_trainer, trained
from transformer_lab.models.patch_forecaster import PatchForecasterConfig
from transformer_lab.models.wavenet import WaveNet, WaveNetConfig
from transformer_lab.ops.forecasts import naive_error

STEPS = {
    "model.context": 12, "model.horizon": 4, "model.step_width": 8, "model.width": 8,
    "model.layers": 2, "batch.rows": 8, "task.quantiles": (0.1, 0.5, 0.9), "model.dropout": 0.0,
}  # fmt: skip
PATCHES = {"model.patch": 4, "model.heads": 2, "model.head_dim": 4, "model.feed_forward_width": 12}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Two series of 60 months: a season of 12 around a level, and one around a trend."""
    t, folder = np.arange(60), tmp_path_factory.mktemp("series")
    wave = np.sin(2 * np.pi * t / 12)
    values = 20 + 8 * wave, 900 + 5 * t + 300 * wave
    rows = [f"{2001 + k // 12}-{k % 12 + 1:02d},{values[0][k]},{values[1][k]}" for k in t]
    (folder / "own.csv").write_text("\n".join(["date,a,b", *rows]), "utf-8")
    return folder / "own.csv"


def config(path, kind="patch_forecaster", **changes):
    settings = {"data.source": "files", "data.path": str(path), "data.horizon": 4}
    more = PATCHES if kind == "patch_forecaster" else {}
    return config_of(kind, "forecasting", RUN, FAST, STEPS, settings, more, **changes)


@pytest.mark.parametrize("kind", ["patch_forecaster", "wavenet"])
def test_a_model_learns_the_season_and_its_scores_are_those_of_their_definitions(path, kind):
    trainer = make_trainer(config(path, kind), 1)
    task, (params, _) = trainer.task, trained(trainer, 60)
    found = task.score(params, "test", trainer.place, True).values
    assert found["smape"] < 8
    quantiles = task.quantiles(params, task.data.test, trainer.place)
    assert quantiles.shape == (2, 4, 3) and (np.diff(quantiles, axis=-1) >= 0).all()
    actual, losses, mase = task.data.test.future(), [], []
    for i in range(2):
        for h in range(4):
            for q, value in zip((0.1, 0.5, 0.9), quantiles[i, h], strict=True):
                miss = actual[i, h] - value
                losses.append(2 * (q * miss if miss > 0 else (q - 1) * miss))
        unit = naive_error(task.data.test.past(i), 12)
        mase.append(np.abs(actual[i] - quantiles[i, :, 1]).mean() / unit)
    assert found["crps"] == pytest.approx(np.mean(losses) / np.abs(actual).mean(), rel=1e-6)
    assert found["mase"] == pytest.approx(np.nanmean(mase), rel=1e-6)
    shares = [found[k] / found[f"naive_{k}"] for k in ("smape", "mase")]
    assert found["owa"] == pytest.approx(np.mean(shares)) and found["naive_owa"] == 1


def test_students_t_has_the_density_and_the_quantiles_of_scipy(path):
    trainer = make_trainer(config(path, task__output="student_t"), 1)
    task, batch = trainer.task, next(iter(trainer.task.eval_batches("test")))
    params, losses = trained(trainer, 30)
    assert losses[-1] < losses[0] - 0.5
    unit, numbers = map(np.asarray, task._outputs(params, trainer.place(batch)))
    where, scale, freedom = np.split(numbers[:2], 3, axis=-1)
    assert (scale > 0).all() and (freedom > 2).all()
    law, target = stats.t(freedom, where, scale), batch["target"][:2, :, None] / unit[:2, None]
    total, weight = jax.jit(task.metrics)(params, trainer.place(batch))["loss"]
    np.testing.assert_allclose(total, -law.logpdf(target).sum(), rtol=1e-4)
    assert weight == 8
    found = task.quantiles(params, task.data.test, trainer.place)
    expected = law.ppf([0.1, 0.5, 0.9]) * unit[:2, None]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_loss_is_the_pinball_loss_and_a_series_in_other_units_has_the_same(path):
    trainer = make_trainer(config(path, task__mu=50.0), 1)
    task = trainer.task
    batch = trainer.place(next(iter(task.eval_batches("test"))))
    params = jax.jit(task.init)(jax.random.key(0))
    loss = jax.jit(task.metrics)
    total, weight = loss(params, batch)["loss"]
    unit, quantiles = jax.jit(task.outputs)(params, batch)
    size = np.log1p(50 * np.asarray(batch["target"] / unit)) / np.log1p(50)
    miss = size[..., None] - np.asarray(quantiles)
    expected = np.where(miss > 0, miss * [0.1, 0.5, 0.9], miss * [-0.9, -0.5, -0.1])
    assert weight == 8  # two series of four steps; the other rows are padding
    np.testing.assert_allclose(total, 2 * expected[:2].mean(axis=-1).sum(), rtol=1e-4)
    other = batch | {name: 1000 * batch[name] for name in ("values", "target")}
    np.testing.assert_allclose(loss(params, other)["loss"][0], total, rtol=1e-4)
    x = jnp.array([-3.0, -0.01, 0.0, 0.2, 5.0])
    np.testing.assert_allclose(task._expand(task._compress(x)), x, rtol=1e-4)


def test_a_dilated_convolution_sees_its_receptive_field_and_no_more():
    cfg = WaveNetConfig(layers=3, cycle=3, width=4, context=12, horizon=1, outputs=1, linear=False)
    model = WaveNet(cfg)
    args = jnp.ones((1, 12)), jnp.ones((1, 12), bool), jnp.zeros((1, 13, 8))
    params = draw(model, *args)
    slope = jax.jit(jax.grad(lambda x: model.apply(params, x, *args[1:]).sum()))(args[0])[0]
    assert (slope[:4] == 0).all() and (slope[4:] != 0).all()  # 1 + 1 + 2 + 4 steps


def test_a_patch_without_values_changes_nothing(path):
    trainer = make_trainer(config(path), 1)
    assert isinstance(trainer.task.model_config, PatchForecasterConfig)
    params = jax.jit(trainer.task.init)(jax.random.key(0))
    batch = trainer.place(next(iter(trainer.task.eval_batches("test"))))
    seen = batch["seen"] & (np.arange(12) >= 4)
    outputs = jax.jit(trainer.task.outputs)
    one, other = (
        outputs(params, batch | {"seen": seen, "values": values})[1]
        for values in (batch["values"], jnp.where(seen, batch["values"], 1e6))
    )
    np.testing.assert_array_equal(one, other)


def test_the_command_writes_quantiles_and_refuses_more_steps(path, tmp_path):
    leave_run(config(path), tmp_path / "run")
    run = f"--workdir={tmp_path / 'run'}"
    code, out, _ = command("forecast", run, str(path), "--horizon=2")
    rows = list(csv.DictReader(io.StringIO(out.decode())))
    assert code == 0 and [r["date"] for r in rows] == ["2006-01", "2006-02"] * 2
    assert [r["series"] for r in rows] == ["a", "a", "b", "b"]
    assert all(float(r["q0.1"]) <= float(r["q0.5"]) <= float(r["q0.9"]) for r in rows)
    code, _, _ = command("forecast", run, str(path), "--json", f"--output={tmp_path / 'found'}")
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert code == 0 and found[0]["date"][3] == "2006-04"
    assert found[1]["quantiles"]["0.5"][0] == pytest.approx(float(rows[2]["q0.5"]), rel=1e-5)
    assert (tmp_path / "found.png").stat().st_size and (tmp_path / "found.svg").stat().st_size
    code, _, err = command("forecast", run, str(path), "--horizon=5")
    assert code == 2 and "--horizon = 5 must be from 0 to 4" in err.decode()
