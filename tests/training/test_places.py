"""A run lies in a bucket as it lies in a directory."""

import json
import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from etils.epath import backend
from fsspec.implementations.memory import MemoryFile

from tests.bucket import Bucket, buckets
from tests.entry import command
from tests.tiny import read_metrics, tiny_config
from tests.training.test_checkpoint import abstract, make_state
from transformer_lab.errors import LabError
from transformer_lab.training import lock, places, runs, sources
from transformer_lab.training.checkpoint import Checkpoints
from transformer_lab.training.signals import Stopped
from transformer_lab.training.writers import MetricWriter

DEVICES = 1
RATES = ("goodput", "seconds", "_per_second", "programs")  # other in each run


@pytest.fixture
def objects(monkeypatch, tmp_path):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(lock, "SETTLES", 0.001)
    with buckets(monkeypatch) as found:
        yield found
    assert not list((tmp_path / "here").iterdir())


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The same run in a directory, never stopped."""
    workdir = tmp_path_factory.mktemp("local")
    runs.run(tiny_config(eval_every=4, mesh__data=-1), workdir)
    return workdir


def steady(values):
    return {k: v for k, v in values.items() if not k.endswith(RATES)}


def stop_at(step, monkeypatch):
    """A SIGTERM to this process once the step's line was written, and never again."""
    write = MetricWriter.write

    def stops(self, now, values):
        write(self, now, values)
        if now == step:
            monkeypatch.setattr(MetricWriter, "write", write)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(MetricWriter, "write", stops)


@pytest.mark.slow
def test_a_run_in_a_bucket_stops_resumes_and_is_used_with_a_directorys_digits(
    local, objects, monkeypatch, capsys
):
    address = "gs://bucket/a/run"
    config = tiny_config(eval_every=4, mesh__data=-1, tensorboard=True)
    stop_at(6, monkeypatch)
    with pytest.raises(Stopped):
        runs.run(config, Path(address))
    assert "saved at step 7 of 10" in capsys.readouterr().err
    del objects["/bucket/a/run/checkpoints/step_00000007/manifest.json"]  # a save that was cut
    runs.run(config, Path(address))
    told = capsys.readouterr().err
    assert "resumes at step 5" in told and f"{address} cannot hold TensorBoard events" in told

    there = places.place(address)
    assert [*map(steady, read_metrics(there))] == [*map(steady, read_metrics(local))]
    theirs, ours = (json.loads((path / "results.json").read_bytes()) for path in (there, local))
    theirs.pop("saved_bytes"), ours.pop("saved_bytes")  # compressed with other names
    assert steady(theirs) == steady(ours)
    names = {name.removeprefix("/bucket/a/run/").partition("/0")[0] for name in objects}
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        "checkpoints",
        "clock.json",
        "config.json",
        "metrics.jsonl",
        "results.json",
        "report.html",
    }
    steps = {name.split("/")[1] for name in names if name.startswith("checkpoints/")}
    assert steps == {"step_00000005", "step_00000010"}
    values = json.loads(command("evaluate", f"--workdir={there}").stdout)
    assert values.items() >= {k[5:]: v for k, v in ours.items() if k.startswith("test/")}.items()
    found = [sources.open_source(str(place)).params for place in (address, local)]
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_checkpoints_in_s3_are_staged_and_come_back(objects, monkeypatch, tmp_path):
    monkeypatch.setattr(places.tempfile, "tempdir", str(tmp_path))
    made, lines = Checkpoints(places.place("s3://bucket/run"), 2, print), []
    root, state = "/bucket/run/checkpoints/step_0000000", make_state(7)
    objects[f"{root}6/state/rest"] = objects[f"{root}7/state/rest"] = MemoryFile(data=b"of a save")
    for step in (3, 5, 7):
        made.save(step, state, {"next_index": step}, {"seed": 1}, {"vocabulary": b"x"})
    made.wait()
    assert {name[: len(root) + 1] for name in objects} == {f"{root}5", f"{root}7"}
    assert f"{root}7/state/rest" not in objects
    jax.tree.map(np.testing.assert_array_equal, made.restore(7, abstract(state)), state)
    jax.tree.map(np.testing.assert_array_equal, made.restore_params(7), state.params)
    sizes = [f.size for name, f in objects.items() if name.startswith(f"{root}7/state/")]
    assert made.array_bytes() == sum(sizes)
    assert not list((tmp_path).glob("transformer_lab_*/checkpoints/*/state"))
    made.close()
    assert not list((tmp_path).glob("transformer_lab_*"))
    name = next(name for name in objects if name.startswith(f"{root}7/state/"))
    Bucket().pipe_file(name, b"damaged")
    made = Checkpoints(places.place("s3://bucket/run"), 2, lines.append)
    assert made.newest() == [5] and "step 7 is passed over" in lines[0]
    made.close()


def test_a_bucket_has_one_writer_whose_beats_are_seen(objects, monkeypatch):
    monkeypatch.setattr(lock, "SILENCE", 0.2)
    workdir, lines = places.place("gs://bucket/run"), []
    with lock.locked(workdir), pytest.raises(LabError, match=rf"by process {os.getpid()} on"):
        runs.run(tiny_config(), workdir)
    assert not objects
    other = lock._own() | {"system": "another host", "host": "far"}
    lock._write(workdir / lock.LOCK, other)
    with lock.locked(workdir, lines.append):  # it is silent
        assert json.loads(objects["/bucket/run/lock.json"].getvalue())["process"] == os.getpid()
    assert "for a sign of life" in lines[0] and "takes over" in lines[1]
    lock._write(workdir / lock.LOCK, other)
    monkeypatch.setattr(lock.time, "sleep", lambda _: lock._write(workdir / lock.LOCK, other))
    with pytest.raises(LabError, match="is in use by process .* on far"), lock.locked(workdir):
        pass


@pytest.mark.parametrize(("scheme", "module"), [("gs", "gcsfs"), ("s3", "s3fs")])
def test_without_its_package_an_address_gets_one_line_that_names_the_extra(
    scheme, module, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("EPATH_USE_TF", "false")
    backend.fsspec_backend._get_filesystem.cache_clear()
    extra = {"gs": "gcs", "s3": "s3"}[scheme]
    for use in (lambda path: runs.run(tiny_config(), path), runs.stored_config):
        with pytest.raises(LabError) as info:
            use(Path(f"{scheme}://bucket/run"))
        line = f"{scheme}://bucket/run needs `pip install 'transformer_lab[{extra}]'`"
        assert str(info.value) == line
    assert not list(tmp_path.iterdir())


def test_a_bucket_that_cannot_be_reached_gets_one_line(objects, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no credentials\nsecond line")

    monkeypatch.setattr(Bucket, "exists", fails)
    with pytest.raises(LabError, match="^s3://bucket/run cannot be reached: no credentials$"):
        runs.stored_config(Path("s3://bucket/run"))


def test_what_a_bucket_cannot_hold_is_refused_before_anything_is_written(objects, monkeypatch):
    with pytest.raises(LabError, match="^--profile: gs://bucket/run cannot hold a trace"):
        runs.run(tiny_config(), Path("gs://bucket/run"), profile=3)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(LabError, match="several processes cannot save together to s3://"):
            places.refuse_impossible(places.place("s3://bucket/run"), 0)
    for name in ("a[1]", "a*", "a#b", "a?b"):
        with pytest.raises(LabError, match="no name in a bucket may hold any of"):
            runs.run(tiny_config(), Path(f"gs://bucket/{name}"))
    done = command("sweep", "--workdir=gs://bucket/sweep")
    assert done.stderr.startswith(b"error: gs://bucket/sweep cannot hold a sweep")
    assert not objects
