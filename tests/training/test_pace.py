"""What the log says of a run's speed, and the switches for it."""

import dataclasses
from itertools import pairwise

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from transformer_lab import models
from transformer_lab.models.decoder import DecoderConfig, training_flops
from transformer_lab.training import pace
from transformer_lab.training.chips import CHIPS
from transformer_lab.training.programs import count_programs, programs
from transformer_lab.training.startup import GPU, TPU, order_simulated, set_flags


class Clock:
    """Takes the place of the module `time`."""

    def __init__(self):
        self.now = 1000.0

    def time(self):
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


def test_rates_waiting_goodput_and_flops_used_are_those_of_the_clock(clock, tmp_path, monkeypatch):
    peak = 1e6 / len(pace.jax.devices())
    monkeypatch.setattr(
        pace, "chip_of", lambda device: dataclasses.replace(CHIPS["H100"], flops=peak)
    )
    made = pace.Pace(tmp_path, flops=100.0)
    clock.now += 10  # compilation
    made.count({"tokens": 1000})
    with made.stopped():
        clock.now += 50  # evaluation
    with made.waiting():
        clock.now += 5
    clock.now += 25
    made.count({"tokens": 1000})
    values, text = made.read()
    assert values == {
        "tokens_per_second": 2000 / 40,
        "steps_per_second": 2 / 40,
        "data_seconds": 5.0,
        "goodput": 25 / 90,
        "mfu": 100 * 2000 / 40 / 1e6,
    }
    assert "50 tokens/s" in text and "data 5.00 s" in text
    assert "goodput 27.8%" in text and "MFU 0.5%" in text


def test_goodput_counts_from_the_first_start_and_what_was_saved(clock, tmp_path):
    def stretch(made, seconds):
        made.count({})
        clock.now += seconds
        return made.read()[0]["goodput"]

    first = pace.Pace(tmp_path, 0.0)
    assert stretch(first, 30) == 1.0
    first.save()
    assert stretch(first, 30) == 1.0  # and then it is killed
    clock.now += 40
    assert stretch(pace.Pace(tmp_path, 0.0), 20) == 50 / 120


def test_flops_a_token_leave_tables_out_and_are_those_of_the_paper_for_a_decoder():
    config = DecoderConfig(vocab_size=50, layers=2, width=16, heads=2, head_dim=8)
    shapes = models.parameter_shapes("decoder", config)
    assert models.flops_a_token(config, shapes) == training_flops(config)
    tree = {"embedding": {"embedding": pace.jax.ShapeDtypeStruct((50, 16), "float32")}}
    tree["out"] = {"kernel": pace.jax.ShapeDtypeStruct((16, 4), "float32")}
    assert models.flops_a_token(None, tree) == 6 * 16 * 4


def test_flags_are_set_for_the_device_at_hand_and_never_on_a_cpu():
    told = {"XLA_FLAGS": f"--{GPU[0]}=false --xla_dump_to=x"}
    assert set_flags(told, "gpu") == "gpu"
    assert told["XLA_FLAGS"].startswith(f"--{GPU[0]}=false --xla_dump_to=x --{GPU[1]}=true")
    assert told["XLA_FLAGS"].count(GPU[0]) == 1 and "LIBTPU_INIT_ARGS" not in told
    told = {}
    set_flags(told, "tpu")
    assert told == {"LIBTPU_INIT_ARGS": " ".join(f"--{flag}=true" for flag in TPU)}
    for environment in ({"JAX_PLATFORMS": "cpu"}, {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--a=1"}):
        before = dict(environment)
        assert set_flags(environment) == "cpu" and environment == before


def test_simulated_devices_have_threads_for_all_collectives_that_can_start():
    """Else a run on eight devices beside another process can wait for ever."""
    eight = "--xla_force_host_platform_device_count=8"
    own = f"{eight} --xla_cpu_multi_thread_eigen=true"
    for told, wanted in (
        ({}, {}),
        ({"XLA_FLAGS": "--xla_dump_to=x"}, {"XLA_FLAGS": "--xla_dump_to=x"}),
        (
            {"XLA_FLAGS": eight},
            {"XLA_FLAGS": f"{eight} --xla_cpu_multi_thread_eigen=false", "NPROC": "64"},
        ),
        ({"XLA_FLAGS": own, "NPROC": "9"}, {"XLA_FLAGS": own, "NPROC": "9"}),
    ):
        order_simulated(told)
        assert told == wanted


def test_programs_are_counted_and_those_that_were_compiled_before(tmp_path):
    """The same function is compiled once for the cache and then read from it."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    count_programs()
    try:
        told = [_after(settings)]
        for _ in range(2):
            jax.jit(lambda x: x * 3 + 0.125)(np.ones(7, np.float32)).block_until_ready()
            told.append(programs())
    finally:
        _after(before)
    first, second = (
        [now[name] - then.get(name, 0) for name in ("programs", "cached_programs")]
        for then, now in pairwise(told)
    )
    assert first == [1, 0] and second == [1, 1]


def _after(settings) -> dict[str, int]:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    return programs()
