"""Compiles a run's own train step for devices that need not be present, and says what it costs.

Nothing is allocated: state and batch are shapes. A TPU's compiler comes with the package libtpu and
needs no TPU; simulated CPU devices show the same layout and the same collectives.
"""

import dataclasses
import importlib.util
import math
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_lab import models
from transformer_lab.errors import LabError
from transformer_lab.ops.layout import ROW_AXES
from transformer_lab.tasks.base import stand_in
from transformer_lab.training import hlo, runs
from transformer_lab.training.chips import CHIPS, Chip, chip_of
from transformer_lab.training.config import Resolved
from transformer_lab.training.mesh import batch_sharding, make_mesh
from transformer_lab.training.trainer import Trainer

TOKENS = {*ROW_AXES, "sequence"}  # the axes over which tokens are divided
NO_TPU = {  # answers to what the TPU's runtime would ask the machine if it had a TPU
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes may compile at once
}
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def devices_of(topology: str) -> list[Any]:
    """The devices of a topology: "v5e:8x8", "2*v5e:8x8" (two slices), or "cpu:8" (simulated).
    Raises: LabError for another text, or without the compiler or the devices."""
    slices, _, name = topology.rpartition("*")
    if not re.fullmatch(r"\d*", slices) or ":" not in name:
        raise LabError(f'--topology="{topology}" is none: write v5e:8x8, 2*v5e:8x8 or cpu:8')
    if name.startswith("cpu:"):
        return _simulated(name.removeprefix("cpu:"))
    if importlib.util.find_spec("libtpu") is None:
        raise LabError(
            f"--topology={topology} needs the TPU's compiler: pip install transformer_lab"
            "[tpu-compile], or take simulated devices, --topology=cpu:8"
        )
    for variable, value in NO_TPU.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    more = {"num_slices": int(slices)} if slices else {}
    try:
        return list(topologies.get_topology_desc(name, "tpu", **more).devices)
    except Exception as error:  # the runtime's own kinds, which are not public
        raise LabError(f"--topology={topology}: {str(error).splitlines()[0]}") from error


def _simulated(count: str) -> list[Any]:
    if not count.isdigit() or int(count) < 1:
        raise LabError(f"--topology=cpu:{count}: write the number of devices, as cpu:8")
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", int(count))
    except RuntimeError:  # jax has its devices already
        pass
    found = jax.devices("cpu")
    if len(found) < int(count):
        raise LabError(f"--topology=cpu:{count}: this process has {len(found)} devices")
    return found[: int(count)]


def abstract_trainer(resolved: Resolved, mesh: Mesh) -> Trainer:
    """The run's trainer, with stand-ins for tokenizer and labels: only their number matters."""
    run = dataclasses.replace(resolved.run, epochs=None)
    task = runs.build_task(resolved, stand_in(resolved.model, resolved.sections), mesh)
    return Trainer(run, task, mesh)


def compile_step(resolved: Resolved, topology: str, chip: str = "") -> dict[str, Any]:
    """Bytes, FLOPs, collectives and a lower bound on the time of one step, on one device.

    `chip` names the chip whose rates are used; "" means the topology's own, if it is not simulated.
    """
    devices = devices_of(topology)
    rates = _named(chip) if chip else _rates(devices)
    mesh = make_mesh(resolved.run.mesh, devices)
    trainer = abstract_trainer(resolved, mesh)
    batch = trainer.task.abstract_batch()
    found = {"topology": topology, "mesh": dict(mesh.shape), "chip": rates and rates.name}
    found["model_flops"] = model_flops(resolved, trainer, batch)
    began = time.monotonic()
    lowered = trainer.train_step.trace(trainer.step_state, batch).lower()
    try:
        compiled, text = compile_with_text(lowered, devices[0].platform)
    except jax.errors.JaxRuntimeError as error:
        return found | _out_of_memory(error, trainer, batch)
    found["compile_seconds"] = round(time.monotonic() - began, 1)
    found |= memory_of(compiled)
    program = hlo.parse(text)
    found |= {"flops": program.flops(), "traffic_bytes": program.traffic()}
    found["collectives"] = program.collectives()
    found["collective_bytes"] = sum(c["bytes"] for c in found["collectives"].values())
    found["least_collective_bytes"] = least_collectives(trainer, _dtype(resolved.model))
    found["largest"] = program.largest(12)
    found["fits"] = None if rates is None else found["peak_bytes"] <= rates.memory
    return found | (roofline(found, rates, len(devices)) if rates else {"step_seconds": None})


def compile_with_text(lowered: Any, platform: str) -> tuple[Any, str]:
    """The compiled program and its optimised HLO text.

    A TPU's compiler prints the text itself, into a directory: it can be newer than jax, which then
    cannot read all of its instructions.
    """
    if platform != "tpu":
        compiled = lowered.compile()
        return compiled, compiled.as_text()
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        compiled = lowered.compile(compiler_options=options)
        texts = Path(folder).glob("*.after_optimizations.txt")
        return compiled, max(texts, key=lambda path: path.stat().st_size).read_text()


def memory_of(compiled: Any) -> dict[str, int]:
    """The bytes of a device's memory that the program uses, by purpose. Aliased bytes are those of
    arguments whose memory an output takes over."""
    stats = compiled.memory_analysis()
    names = {"argument": "argument", "output": "output", "aliased": "alias", "temporary": "temp"}
    found = {f"{k}_bytes": getattr(stats, f"{v}_size_in_bytes") for k, v in names.items()}
    held = found["argument_bytes"] + found["output_bytes"] - found["aliased_bytes"]
    code = stats.generated_code_size_in_bytes
    return found | {"peak_bytes": held + found["temporary_bytes"] + code}


def roofline(found: dict[str, Any], chip: Chip, devices: int) -> dict[str, Any]:
    """A lower bound on a step's time: the longest of products, memory traffic and communication, as
    if the others were hidden behind it.

    `mfu` is the model's own FLOPs divided by the peak's in that time. Units: seconds.
    """
    seconds = {
        "products": found["flops"] / chip.flops,
        "memory": found["traffic_bytes"] / chip.bandwidth,
        "links": found["collective_bytes"] / chip.link,
    }
    step = max(seconds.values())
    mfu = found["model_flops"] / devices / chip.flops / step
    return {"seconds": seconds, "step_seconds": step, "mfu": mfu}


def least_collectives(trainer: Trainer, dtype: str) -> int:
    """The least bytes that a device's links must carry for weights and gradients.

    A weight split over fsdp is gathered forward and backward in the compute type, and its gradient
    scattered in its own; over axes of examples that do not split it, its gradient is summed (twice
    its bytes). Activations, which tensor, sequence and expert move too, are not counted.
    """
    sizes, total = trainer.mesh.shape, 0
    width = jax.numpy.dtype(dtype).itemsize
    shardings = jax.tree.leaves(trainer.param_shardings)
    for leaf, sharding in zip(jax.tree.leaves(trainer.param_shapes), shardings, strict=True):
        used = {n for axes in sharding.spec if axes for n in np.atleast_1d(axes).tolist()}
        product = lambda names: int(np.prod([sizes[n] for n in names]))  # noqa: E731
        tokens = TOKENS - ({"expert"} & used)  # an expert stays where it is, tokens come to it
        size, split = leaf.size // product(used - tokens), product(used & tokens)
        own = leaf.dtype.itemsize
        total += size * (2 * width + own) if split > 1 else 0
        total += 2 * size * own // split if product(tokens - used) > 1 else 0
    return total


def model_flops(resolved: Resolved, trainer: Trainer, batch: dict[str, Any]) -> int:
    """FLOPs of the whole batch's matrix products, forward and twice that backward. For a decoder
    these are 6 N a token and its attention's full square. Recomputation is not counted."""
    plain = dataclasses.replace(resolved, model=_plain(resolved.model))
    task = abstract_trainer(plain, trainer.mesh).task
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    loss = lambda params, batch, key: task.loss(params, batch, key)["loss"][0]  # noqa: E731
    traced = jax.make_jaxpr(loss)(shapes, batch, jax.random.key(0))
    # The backward pass of a product is two products of its size.
    return 3 * _traced_flops(traced.jaxpr)


def _plain(model: Any) -> Any:
    """The model's settings without special kernels and scanned layers, to count products."""
    changes = {"attention_implementation": "own", "scan_layers": False}
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = _plain(value)
    names = {field.name for field in dataclasses.fields(model)}
    return dataclasses.replace(model, **{k: v for k, v in changes.items() if k in names})


def _traced_flops(jaxpr: Any) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        name, out = eqn.primitive.name, eqn.outvars[0].aval if eqn.outvars else None
        if name == "dot_general":
            contracted = eqn.params["dimension_numbers"][0][0]
            sizes = eqn.invars[0].aval.shape
            total += 2 * out.size * int(np.prod([sizes[d] for d in contracted], dtype=int))
        elif name == "ragged_dot_general":  # each row meets one kernel
            total += 2 * out.size * eqn.invars[0].aval.shape[-1]
        elif name == "conv_general_dilated":
            kernel, spec = eqn.invars[1].aval, eqn.params["dimension_numbers"].rhs_spec
            total += 2 * out.size * kernel.size // kernel.shape[spec[0]]
        if counts := [_traced_flops(inner) for inner in inner_jaxprs(eqn)]:
            times = eqn.params["length"] if name == "scan" else 1
            total += times * (max(counts) if name == "cond" else sum(counts))
    return total


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The programs inside an equation of a traced program: a loop's body, a choice's branches."""
    found = [y for x in eqn.params.values() for y in (x if isinstance(x, tuple | list) else [x])]
    found = [getattr(x, "jaxpr", x) for x in found]
    return [x for x in found if hasattr(x, "eqns")]


def _dtype(model: Any) -> str:
    """The model's compute type; for two towers that of the text tower."""
    return model.dtype if isinstance(model, models.Computed) else "float32"


def _rates(devices: Sequence[Any]) -> Chip | None:
    """The rates of one device: half a chip's where a topology counts a chip's two cores (v4)."""
    rates, cores = chip_of(devices[0]), len({getattr(d, "core_on_chip", 0) for d in devices})
    if rates is None or cores == 1:
        return rates
    values = {f: getattr(rates, f) / cores for f in ("flops", "memory", "bandwidth", "link")}
    return Chip(f"1/{cores} {rates.name}", **values)


def _named(chip: str) -> Chip:
    for kind, rates in CHIPS.items():
        if chip.lower() in (kind.lower(), rates.name.lower(), rates.name.lower()[4:]):
            return rates
    names = ", ".join(rates.name for rates in CHIPS.values())
    raise LabError(f'--chip="{chip}" is unknown: use one of {names}')


def _out_of_memory(error: Exception, trainer: Trainer, batch: dict[str, Any]) -> dict[str, Any]:
    """The compiler's figures for a step that does not fit; other errors become a LabError."""
    said = str(error)
    found = re.search(
        r"temporaries \(([\d.]+)([KMGT]?)\) exceed\w* available \w+ \(([\d.]+)(\w?)\)", said
    )
    found = found or re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?)", said)
    if "RESOURCE_EXHAUSTED" not in said or not found:
        raise LabError(f"the compiler refuses the step: {said.splitlines()[0][:300]}") from error
    wanted, there = (int(float(found[i]) * UNITS[found[i + 1]]) for i in (1, 3))
    rows = batch_sharding(trainer.mesh)
    leaves = [(x, x.sharding) for x in jax.tree.leaves(trainer.step_state)]
    leaves += [(x, rows) for x in batch.values()]
    given = sum(math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize for x, s in leaves)
    names = "collective_bytes", "flops", "step_seconds"
    return {
        "argument_bytes": given,
        "temporary_bytes": wanted,
        "peak_bytes": given + wanted,
        "available_bytes": there,
        "fits": False,
        "collectives": {},
        "largest": [],
        **dict.fromkeys(names),
    }
