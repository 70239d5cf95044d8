"""What is saved comes back, and what is damaged is passed over."""

import concurrent.futures
import json
import resource
import subprocess
import sys
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.test_language_modeling import tiny_model
from transformer_lab.errors import LabError
from transformer_lab.training import checkpoint, manifest, runs
from transformer_lab.training.checkpoint import Checkpoints
from transformer_lab.training.config import MeshConfig, OptimizerConfig
from transformer_lab.training.mesh import make_mesh, shardings
from transformer_lab.training.optimizer import make_optimizer, schedule
from transformer_lab.training.places import write_atomically
from transformer_lab.training.startup import drop_late_writers
from transformer_lab.training.state import init_state

CONFIG = OptimizerConfig()


def make_state(seed=0, width=6):
    init = lambda key: {"query": {"kernel": jax.random.normal(key, (8, width))}}  # noqa: E731
    return init_state(init, make_optimizer(CONFIG, schedule(CONFIG, 10)), seed)


def abstract(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture
def lines():
    return []


@pytest.fixture
def checkpoints(tmp_path, lines):
    with Checkpoints(tmp_path, 3, lines.append) as made:
        yield made


def save(checkpoints, *steps):
    for step in steps:
        checkpoints.save(
            step, make_state(step), {"next_index": step}, {"seed": 1}, {"vocabulary": b"\0x"}
        )
    checkpoints.wait()


def test_all_that_was_saved_comes_back_bit_for_bit(checkpoints):
    save(checkpoints, 7)
    want = make_state(7)
    got = checkpoints.restore(7, abstract(want))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    equal(got, want)
    saved = checkpoints.read(7)
    assert (saved.step, saved.data, saved.config) == (7, {"next_index": 7}, {"seed": 1})
    assert saved.assets == {"vocabulary": b"\0x"}


@pytest.mark.parametrize("name", ["[a]", "a\\b", "*", "a b%20#:=", "a\nb", "x" * 200])
def test_a_directory_may_have_any_name(name, tmp_path):
    (tmp_path / "a").mkdir()  # what the first name is a pattern of
    with Checkpoints(tmp_path / name, 3) as made:
        save(made, 7)
        equal(made.restore_params(7), make_state(7).params)
        equal(made.restore(7, abstract(make_state())), make_state(7))
    assert not list((tmp_path / "a").iterdir())


def test_the_newest_are_kept_and_parameters_average(checkpoints):
    save(checkpoints, 1, 2, 3, 4)
    assert checkpoints.newest() == [2, 3, 4]
    mean = checkpoints.average_params([2, 3, 4])["query"]["kernel"]
    want = sum(make_state(s).params["query"]["kernel"] for s in (2, 3, 4)) / 3
    np.testing.assert_allclose(mean, want, rtol=1e-6)


MANIFESTS = {"no": None, "an empty": "", "a nested": "[" * 99999, "another": "[]"}


def damage(directory, kind):
    big = max((directory / "state").rglob("*"), key=lambda p: p.stat().st_size * p.is_file())
    if kind == "flipped byte":
        content = bytearray(big.read_bytes())
        content[len(content) // 2] ^= 1
        big.write_bytes(content)
    elif kind == "truncated":
        big.write_bytes(big.read_bytes()[:-1])
    elif kind == "missing file":
        (directory / "run.json").unlink()
    elif (text := MANIFESTS[kind.removesuffix(" manifest")]) is None:
        (directory / "manifest.json").unlink()
    else:
        (directory / "manifest.json").write_text(text)


@pytest.mark.parametrize(
    "kind",
    ["flipped byte", "truncated", "missing file", *(f"{kind} manifest" for kind in MANIFESTS)],
)
def test_a_damaged_step_is_passed_over_with_a_line(kind, checkpoints, tmp_path, lines):
    save(checkpoints, 1, 2)
    damage(tmp_path / "checkpoints" / "step_00000002", kind)
    with Checkpoints(tmp_path, 3, lines.append) as again:
        assert again.newest() == [1]
        assert len(lines) == 1 and "step 2 is passed over" in lines[0]
        save(again, 2)
        assert again.newest() == [1, 2]


def test_the_newest_step_is_found_without_reading_the_others(checkpoints, tmp_path, monkeypatch):
    save(checkpoints, 1, 2, 3)
    damage(tmp_path / "checkpoints" / "step_00000003", "flipped byte")
    again, read, whole = Checkpoints(tmp_path, 3, lambda line: None), [], manifest.digests
    monkeypatch.setattr(
        manifest, "digests", lambda path, names: read.append(path.name) or whole(path, names)
    )
    assert again.newest(1) == [2] and read == ["step_00000003", "step_00000002"]
    assert again.newest(1) == [2] and len(read) == 2
    assert again.newest() == [1, 2] and len(read) == 3
    again.close()


def test_several_processes_read_each_file_once_between_them(checkpoints, tmp_path, monkeypatch):
    save(checkpoints, 1)
    directory, read, whole = tmp_path / "checkpoints" / "step_00000001", [], manifest.digests
    monkeypatch.setattr(
        manifest, "digests", lambda path, names: read.extend(names) or whole(path, names)
    )
    assert [manifest.fault_of(directory, i, 3) for i in range(3)] == [None] * 3
    entries = json.loads((directory / "manifest.json").read_text())["files"]
    assert sorted(read) == sorted(entries)
    damage(directory, "flipped byte")
    assert [manifest.fault_of(directory, i, 3) is None for i in range(3)].count(False) == 1


def test_a_save_that_fails_in_the_background_is_known_at_the_next_step(checkpoints, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "digests", full)
    checkpoints.refuse_failure()
    checkpoints.save(1, make_state(1), {}, {}, {})
    concurrent.futures.wait([checkpoints._pending])
    with pytest.raises(LabError, match="step 1 could not be written.*No space left"):
        checkpoints.refuse_failure()
    with pytest.raises(LabError, match="could not be written"):
        checkpoints.wait()


def test_junk_that_looks_like_a_step_is_no_checkpoint_and_is_never_deleted(
    checkpoints, tmp_path, lines
):
    root = tmp_path / "checkpoints"
    for name in ("99", "step_99", "step_00000099"):
        (root / name).mkdir(parents=True)
        (root / name / "thesis.txt").write_text("mine")
    save(checkpoints, 1, 2, 3, 4, 5)
    assert checkpoints.newest() == [3, 4, 5]
    assert any("step 99 is passed over" in line for line in lines)
    for name in ("99", "step_99", "step_00000099"):
        assert (root / name / "thesis.txt").read_text() == "mine"


def test_saves_that_were_cut_are_cleared_away_by_the_next_whole_one(checkpoints, tmp_path):
    save(checkpoints, 1, 2, 3)
    root = tmp_path / "checkpoints"
    damage(root / "step_00000002", "no manifest")
    damage(root / "step_00000003", "flipped byte")  # whole once: somebody may bring it back
    (root / "step_00000004" / "state.orbax-checkpoint-tmp").mkdir(parents=True)
    (root / "step_00000004" / "run.json.part").write_text("{")
    (root / "step_00000009").mkdir()  # of a later step, which will be saved again
    save(checkpoints, 5)
    found = sorted(int(path.name[5:]) for path in root.iterdir())
    assert found == [1, 3, 5, 9]


def test_a_changed_type_or_shape_is_refused_naming_the_leaf(checkpoints):
    save(checkpoints, 1)
    half = abstract(jax.tree.map(lambda x: x.astype(jnp.bfloat16), make_state()))
    with pytest.raises(LabError, match=r"is (int32|float32)\[.*bfloat16\["):
        checkpoints.restore(1, half)
    with pytest.raises(LabError, match=r"kernel is float32\[8, 6\].*float32\[8, 5\]"):
        checkpoints.restore(1, abstract(make_state(width=5)))


def test_a_checkpoint_comes_back_on_another_mesh(checkpoints):
    save(checkpoints, 1)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    shapes = jax.eval_shape(make_state)
    placed = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        shapes,
        shardings(shapes, mesh),
    )
    got = checkpoints.restore(1, placed)
    kernel = got.params["query"]["kernel"]
    assert len(kernel.sharding.device_set) == 8 and not kernel.is_fully_replicated
    equal(got, make_state(1))


def test_a_full_disk_is_one_line_and_earlier_steps_survive(tmp_path):
    """A limit on the size of files stands for the disk that is full."""
    code = f"""
import resource, sys
sys.path.insert(0, {str(tmp_path.parent)!r})
from tests.training.test_checkpoint import make_state, Checkpoints, LabError
checkpoints = Checkpoints({str(tmp_path)!r}, 3)
checkpoints.save(1, make_state(1), {{}}, {{}}, {{}})
checkpoints.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
try:
    checkpoints.save(2, make_state(2, 600), {{}}, {{}}, {{}})
    checkpoints.wait()
except LabError as error:
    print("REFUSED", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    refused = [line for line in done.stdout.splitlines() if line.startswith("REFUSED")]
    assert len(refused) == 1 and "step 2 could not be written" in refused[0], done.stderr[-2000:]
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    with Checkpoints(tmp_path, 3, lambda line: None) as checkpoints:
        assert checkpoints.newest() == [1]
        equal(checkpoints.restore(1, abstract(make_state())), make_state(1))


def test_an_atomic_write_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_atomically(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, hard))
    try:
        with pytest.raises(OSError):
            write_atomically(path, json.dumps("new and long").encode())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"


def test_a_file_where_the_checkpoints_belong_ends_the_run_with_its_line(tmp_path):
    """The run used to wait for ever for its own threads."""
    (tmp_path / "checkpoints").write_text("somebody's own")
    before = {thread for thread in threading.enumerate() if not thread.daemon}
    with pytest.raises(LabError, match="^checkpoint of step 1 could not be written: .*Not a dir"):
        runs.run(tiny_model(steps=1, mesh__data=-1), tmp_path)
    assert (tmp_path / "checkpoints").read_text() == "somebody's own"
    left = {thread for thread in threading.enumerate() if not thread.daemon} - before
    for thread in left:  # told to end, they do
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in left)


def test_of_errors_that_nobody_can_catch_only_that_of_a_late_writer_is_left_out(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(str(found.exc_value)))
    for _ in range(2):
        drop_late_writers()
    for error in (RuntimeError("Event loop is closed"), RuntimeError("other"), ValueError("x")):
        sys.unraisablehook(SimpleNamespace(exc_type=type(error), exc_value=error))
    assert told == ["other", "x"]
