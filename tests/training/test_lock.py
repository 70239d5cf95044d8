"""Two processes never train in one directory, and a dead one's lock does not stay."""

import json
import os
import subprocess
import sys
import threading

import pytest

from tests.tiny import tiny_config
from transformer_lab.errors import LabError
from transformer_lab.training import lock, runs


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    monkeypatch.setattr(lock, "SILENCE", 0.2)
    monkeypatch.setattr(lock, "SETTLES", 0.05)


def left_behind(workdir, **changes):
    """A lock as a process that is no more would leave it."""
    (workdir / lock.LOCK).write_text(json.dumps({**lock._own(), "token": "theirs"} | changes))


def held(workdir, lines):
    with lock.locked(workdir, lines.append):
        return json.loads((workdir / lock.LOCK).read_text())["process"] == os.getpid()


def test_a_second_run_in_a_directory_is_refused_and_names_the_first(tmp_path):
    with lock.locked(tmp_path):
        with pytest.raises(LabError, match=rf"is in use by process {os.getpid()} on .*, started 2"):
            runs.run(tiny_config(), tmp_path)
        assert sorted(p.name for p in tmp_path.iterdir()) == [lock.LOCK]
    assert not list(tmp_path.iterdir())


def test_a_lock_of_a_dead_process_is_taken_over_with_a_line(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    lines, numbers = [], [dead.pid, os.getpid()]  # the second is that of a process born later
    dead.wait()
    for number in numbers:
        left_behind(tmp_path, process=number, born="1")
        assert held(tmp_path, lines)
    assert [f"lock of process {n} on" in line for n, line in zip(numbers, lines, strict=True)]
    assert all(line.endswith("which is dead") for line in lines) and len(lines) == 2


def test_a_killed_process_that_nobody_has_reaped_is_dead(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    left_behind(tmp_path, process=child.pid)
    assert held(tmp_path, [])
    child.wait()


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 9999, '{"process": "x"}'])
def test_a_lock_of_another_host_or_a_damaged_one_is_taken_once_it_is_silent(content, tmp_path):
    left_behind(tmp_path, system="another boot of another host")
    if content:
        (tmp_path / lock.LOCK).write_text(content)
    lines = []
    assert held(tmp_path, lines)
    assert "for a sign of life" in lines[0] and "takes over" in lines[1]


def test_a_lock_of_another_host_that_beats_is_refused(tmp_path):
    left_behind(tmp_path, system="another boot of another host", host="far")
    ended = threading.Event()
    own = json.loads((tmp_path / lock.LOCK).read_text())
    beating = threading.Thread(target=lock._beat, args=(tmp_path / lock.LOCK, own, ended))
    beating.start()
    with pytest.raises(LabError, match="on far"):
        held(tmp_path, [])
    ended.set()
    beating.join()
    assert json.loads((tmp_path / lock.LOCK).read_text()) == own


def test_of_two_that_take_over_at_once_one_has_it(tmp_path):
    left_behind(tmp_path, process=2**22 + 1, born="1")
    together, outcomes, done = threading.Barrier(5), [], threading.Barrier(5)

    def one():
        together.wait()
        try:
            with lock.locked(tmp_path, lambda line: None):
                outcomes.append("has it")
                done.wait()
        except LabError as error:
            outcomes.append(str(error))
            done.wait()

    threads = [threading.Thread(target=one) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("has it") == 1 and not list(tmp_path.iterdir())


def test_a_process_that_was_declared_dead_stops_when_it_wakes(tmp_path):
    code = f"""
from pathlib import Path
import time
from transformer_lab.training import lock
lock.BEAT = 0.01
with lock.locked(Path({str(tmp_path)!r})):
    lock._write(Path({str(tmp_path)!r}) / lock.LOCK, {{"token": "theirs", "process": 7}})
    time.sleep(30)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 75 and "was taken over by process 7" in done.stderr
    assert json.loads((tmp_path / lock.LOCK).read_text())["token"] == "theirs"
