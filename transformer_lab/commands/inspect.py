"""Says what models cost: tables of published sizes, or a config's compiled step.

    transformer_lab inspect --table=decoders

Tables: encoder_decoders, decoders, encoders and vision (published sizes beside the papers'
figures, what training costs a token and what a decoding cache holds of one) and positions (what
each kind of positions can do, measured). `--devices=1024 --peak_tflops=312 --utilisation=0.4
[--tokens=300e9]` adds the days that training takes. `--config=FILE` shows one config's model
instead. `--table=adapting --init_from=hf:DIR` (or a run) shows what each way of adapting that
model keeps in memory. `--config=FILE --compile --topology=v5e:8x8` compiles the run's train step
for devices that need not be there and says what a step costs (docs/scale.md).
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from rich.console import Console
from rich.table import Table

from transformer_lab import cli
from transformer_lab.errors import LabError, known
from transformer_lab.layers import position_table
from transformer_lab.layers.config import CHOICES, StackConfig
from transformer_lab.layers.costs import idle_parameters
from transformer_lab.models import Vocabulary, costs, family, parameter_shapes, presets, said
from transformer_lab.tasks.base import count_parameters
from transformer_lab.training.compiling import compile_step
from transformer_lab.training.config import METHODS, AdaptConfig, OptimizerConfig, resolve
from transformer_lab.training.optimizer import make_optimizer, schedule
from transformer_lab.training.sources import open_source
from transformer_lab.training.state import init_state

TABLES = (*presets.TABLES, "positions", "adapting")
WAYS = (*((method, "float32") for method in METHODS), ("lora", "int8"), ("lora", "nf4"))
ADAPTER_WIDTH = 48
LINEAR = 1e-4  # an effect of a shift that is left over below this is rounding
Row = dict[str, str]


def define() -> None:
    cli.config_file()
    flags.DEFINE_string("table", "encoder_decoders", f"One of: {', '.join(TABLES)}.")
    flags.DEFINE_integer("devices", None, "How many devices train; adds the days that it takes.")
    flags.DEFINE_float("peak_tflops", None, "Of one device, in 10^12 FLOP/s.")
    flags.DEFINE_float("utilisation", 0.4, "Share of the peak that the model's own FLOPs make.")
    flags.DEFINE_float("tokens", None, "To train on; without it what the paper trained on.")
    flags.DEFINE_boolean("compile", False, "Compiles the config's train step; allocates nothing.")
    flags.DEFINE_string("topology", "cpu:8", "Of --compile: v5e:8x8, 2*v5e:8x8 (slices), cpu:8.")
    flags.DEFINE_string(
        "chip", "", "Of --compile: whose rates are taken on simulated devices: H100."
    )
    flags.DEFINE_boolean("json", False, "Of --compile: one line of JSON.")
    flags.DEFINE_string("init_from", "", "Of --table=adapting: a run, or hf:DIR.")


def main(_: list[str]) -> None:
    name = flags.FLAGS.table
    known("--table=", name, TABLES)
    if flags.FLAGS.compile:
        found = compile_step(resolve(cli.get_config()), flags.FLAGS.topology, flags.FLAGS.chip)
        print(json.dumps(found)) if flags.FLAGS.json else show_compiled(found)
        return
    if flags.FLAGS.config is not None:
        resolved = resolve(cli.get_config())
        if isinstance(resolved.model, Vocabulary) and resolved.model.vocab_size is None:
            raise LabError("model.vocab_size is the tokenizer's: add --config.model.vocab_size=N")
        rows = list(model_rows(resolved.model_kind, resolved.model))
    elif name == "adapting":
        if not flags.FLAGS.init_from:
            raise LabError("--table=adapting needs --init_from=hf:DIR, or a run: which model?")
        rows = list(adapting_rows(open_source(flags.FLAGS.init_from).model))
    elif name == "positions":
        rows = [position_row(kind) for kind in CHOICES["positions"]]
    else:
        rows = [preset_row(*item) | days(item[1]) for item in presets.TABLES[name].items()]
    show(rows)


def preset_row(name: str, preset: presets.Preset) -> Row:
    """The table's line for a published size; "-" where there is no figure."""
    groups = costs.parameter_groups(preset.kind, preset.config)
    count, idle, stated = sum(groups.values()), idle_parameters(preset.config), preset.published
    return {
        "preset": name,
        "parameters": f"{count:,}",
        "published": _number(stated and stated / 1e6, ",.0f", " M"),
        "difference": _number(stated and 100 * (count / stated - 1), "+.1f", " %"),
        "active": f"{count - idle:,}" if idle else "-",
        **_costs(preset.config, groups),
        "learning rate": _number(preset.learning_rate, "g"),
        "batch, tokens": _number(preset.batch_tokens, ",.0f"),
        "source": preset.source,
        "note": preset.note,
    }


def days(preset: presets.Preset) -> Row:
    """The device-days and days of training on --devices; empty without that flag."""
    given = flags.FLAGS
    if given.devices is None:
        return {}
    if given.peak_tflops is None:
        raise LabError("--devices needs --peak_tflops=N, of one device (an A100 in bfloat16: 312)")
    tokens = preset.trained_tokens if given.tokens is None else given.tokens
    pair = (None, None)
    if tokens is not None and (training_flops := said(preset.config, "training_flops")):
        flops, peak = training_flops(preset.config), given.peak_tflops * 1e12
        pair = costs.device_days(flops, tokens, given.devices, peak, given.utilisation)
    return {"device-days": _number(pair[0], ",.1f"), "days": _number(pair[1], ",.2f")}


def model_rows(kind: str, config: Any) -> Iterator[Row]:
    """Lines with a config's parameters by top-level group, and what they cost."""
    groups = costs.parameter_groups(kind, config)
    each, idle = _costs(config, groups), idle_parameters(config)
    groups["all parameters"] = sum(groups.values())
    if idle:
        groups["parameters that work for a token"] = groups["all parameters"] - idle
    groups["bytes of parameters and Adam"] = costs.state_bytes(groups["all parameters"])
    for name, value in groups.items():
        yield {"of the model": name, "": f"{value:,}"}
    for name, value in each.items():
        yield {"of the model": name, "": value}


def adapting_rows(settings: dict[str, Any]) -> Iterator[Row]:
    """The bytes of trained and frozen parameters and Adam's moments, for each way of adapting."""
    kind = settings["kind"]
    model = family(kind).CONFIG(**{k: v for k, v in settings.items() if k != "kind"})
    if not isinstance(model, StackConfig):
        raise LabError(f"--table=adapting is about stacks of blocks, not a {kind} model")
    if kind == "encoder":
        model = replace(model, head="classes", labels=2)
    optimizer = make_optimizer(OptimizerConfig(), schedule(OptimizerConfig(), 1))
    for method, base in WAYS:
        if method == "head" and kind != "encoder":
            continue  # nothing of the kind to train
        width = ADAPTER_WIDTH if method == "adapters" else 0
        shapes = parameter_shapes(kind, replace(model, adapter_width=width))
        zeros = lambda _, s=shapes: jax.tree.map(lambda x: jnp.zeros(x.shape), s)  # noqa: E731
        adapt = AdaptConfig(method=method, base=base, last_layers=min(2, model.layers))
        state = jax.eval_shape(lambda z=zeros, a=adapt: init_state(z, optimizer, 0, a))
        sizes = [_bytes(tree) for tree in (state.params, state.frozen, state.opt_state)]
        yield {
            "method": f"{method}, {base} base" if base != "float32" else method,
            "parameters that train": f"{count_parameters(state.params):,}",
            "trained, bytes": f"{sizes[0]:,}",
            "frozen": f"{sizes[1]:,}",
            "Adam": f"{sizes[2]:,}",
            "all": f"{sum(sizes):,}",
        }


def position_row(kind: str) -> Row:
    """The table's line for a kind of positions, as measured by `layers.position_table`."""
    found = position_table.measure(kind)
    says = {True: "yes", False: "no"}
    error = found.shift_error
    shift = "-" if error is None else f"{says[error < LINEAR]} ({error:.0e})"
    return {
        "positions": kind,
        "acts on": found.acts,
        "parameters": f"{found.parameters:,}",
        f"unique to {position_table.LENGTH:,}": says[found.unique],
        "a shift is one fixed map": shift,
        "any length": says[found.any_length],
        "odd width": says[found.odd_width],
        "least unique width": _number(found.least_width, "d"),
    }


def show(rows: Iterable[Row]) -> None:
    """Prints a table of the columns in which some row has a value."""
    rows = list(rows)
    table = Table()
    names = [name for name in rows[0] if any(row[name] not in ("-", "") for row in rows)]
    for name in names:
        table.add_column(name, no_wrap=name not in ("source", "note", "from"))
    for row in rows:
        table.add_row(*(row[name] for name in names))
    Console(width=None if Console().is_terminal else 220).print(table)


def show_compiled(found: dict[str, Any]) -> None:
    """Prints what a compiled training step costs on one device, and its largest arrays."""
    names = {"mfu": "model FLOPs utilisation, at most"}
    rows = []
    for name, value in found.items():
        if name in ("largest", "collectives", "seconds"):
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            value = f"{value:,}"
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        rows.append({"of one device, a step": names.get(name, name.replace("_", " ")), "": text})
    for kind, entry in found["collectives"].items():
        text = f"{entry['bytes']:,} bytes in {entry['count']:,}"
        rows.append({"of one device, a step": kind, "": text})
    for kind, value in found.get("seconds", {}).items():
        rows.append({"of one device, a step": f"seconds of {kind}", "": f"{value:.4g}"})
    show(rows)
    if found["largest"]:
        show({key: f"{x:,}" if key == "bytes" else str(x) for key, x in one.items()}
             for one in found["largest"])  # fmt: skip
    elif not found["fits"]:
        print("it does not fit; --topology=cpu:N of as many devices shows the largest arrays")


def _costs(config: Any, groups: dict[str, int]) -> Row:
    """Training FLOPs and bytes of cache a token, "-" where the family's file states none."""
    held = said(config, "cache_bytes")
    return {
        "FLOPs a token": _number(costs.flops_a_token(config, groups), ".3g"),
        "cache bytes a token": _number(held and held(config), ",d"),
    }


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _number(value: int | float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
