"""Signals: noted while a run holds them, acted upon at once before."""

import os
import signal
import subprocess
import sys

import pytest

from transformer_lab.training.signals import NUMBERS, Signals


def kill(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_held_signal_is_noted_and_the_old_handlers_come_back(number):
    before = [signal.getsignal(n) for n in NUMBERS]
    signals = Signals()
    with signals.held():
        kill(number)
        assert signals.received == number
    assert [signal.getsignal(n) for n in NUMBERS] == before and signals.received is None


def test_a_scheduler_may_repeat_itself_and_a_second_interrupt_acts_at_once():
    signals = Signals()
    with pytest.raises(KeyboardInterrupt), signals.held():
        kill(signal.SIGUSR1)
        kill(signal.SIGTERM)
        assert signals.received == signal.SIGUSR1
        kill(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_before_there_is_anything_to_save_a_signal_ends_the_process_with_a_line(capfd):
    signals = Signals()
    signals.catch()
    with pytest.raises(SystemExit) as info:
        kill(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        kill(signal.SIGINT)
    with signals.held():
        pass
    assert info.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_forked_worker_dies_of_a_signal_as_if_nobody_had_caught_it():
    code = """
import os, signal
from transformer_lab.training.signals import Signals
with Signals().held():
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(-signal.SIGTERM.value), done.stderr


def test_a_signal_ends_with_its_code_also_where_a_library_made_another_error_of_it(capfd):
    signals = Signals()
    with signals.held():  # which puts the handlers back
        signals._holding = False
        with pytest.raises(SystemExit) as ended, signals.ending():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except SystemExit as error:
                raise RuntimeError("an array could not be read") from error
    assert ended.value.code == 128 + signal.SIGTERM
    assert capfd.readouterr().err == "SIGTERM: stopped, nothing to save\n"
    with pytest.raises(RuntimeError), Signals().ending():
        raise RuntimeError("its own")
