"""Says what models cost: tables of published sizes, or a config's compiled step.

    transformer_lab inspect --table=decoders

Tables: encoder_decoders, decoders, encoders and vision (published sizes beside the papers'
figures, what training costs a token and what a decoding cache holds of one), architectures (the
published decoders' norms, positions, activations and biases) and positions (what each kind of
positions can do, measured). `--devices=1024 --peak_tflops=312 --utilisation=0.4
[--tokens=300e9]` adds the days that training takes. `--config=FILE` shows one config's model
instead: its modules, shapes, parameters, FLOPs and bytes, with the sizes that its data gives it.
`--table=adapting --init_from=hf:DIR` (or a run) shows what each way of adapting that model keeps in
memory. `--config=FILE --compile --topology=v5e:8x8` compiles the run's train step
for devices that need not be there and says what a step costs (docs/scale.md).
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import flags
from flax.traverse_util import flatten_dict

from transformer_lab import cli
from transformer_lab.errors import LabError, known
from transformer_lab.layers import position_table
from transformer_lab.layers.config import CHOICES, StackConfig
from transformer_lab.layers.costs import idle_parameters
from transformer_lab.models import costs, family, parameter_shapes, presets, said
from transformer_lab.models.presets.row import architecture
from transformer_lab.tasks.base import count_parameters, learned
from transformer_lab.terminal import Waiting, print_table, short
from transformer_lab.training import runs
from transformer_lab.training.compiling import abstract_trainer, compile_step
from transformer_lab.training.config import (
    METHODS,
    AdaptConfig,
    OptimizerConfig,
    Resolved,
    resolve,
)
from transformer_lab.training.optimizer import make_optimizer, schedule
from transformer_lab.training.sources import open_source
from transformer_lab.training.state import init_state
from transformer_lab.training.trainer import Trainer

TABLES = (*presets.TABLES, "architectures", "positions", "adapting")
WAYS = (*((method, "float32") for method in METHODS), ("lora", "int8"), ("lora", "nf4"))
ADAPTER_WIDTH = 48
LAYER = re.compile(r"layer_(\d+)")
LINEAR = 1e-4  # an effect of a shift that is left over below this is rounding
Row = dict[str, str]
CONFIG_FIRST = True  # a word in front is --config


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
        rows = list(model_rows(resolve(cli.get_config())))
    elif name == "adapting":
        if not flags.FLAGS.init_from:
            raise LabError("--table=adapting needs --init_from=hf:DIR, or a run: which model?")
        rows = list(adapting_rows(open_source(flags.FLAGS.init_from).model))
    elif name == "architectures":
        rows = [architecture(*item) for item in presets.DECODERS.items()]
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


def model_rows(resolved: Resolved) -> Iterator[Row]:
    """Lines of the model that a run of the config trains: its modules with their arrays' shapes,
    parameters, training FLOPs a token and bytes in training; modules alike are one line.

    The vocabulary, the classes and the images' size are the data's, which is read for them; a
    config that states model.vocab_size or data.size needs no data. The FLOPs of a module are 6 for
    each entry of its kernels (Kaplan 2020, section 2.1); those of the model are its family's own
    formula, with attention. In a model with 2-D convolutions they are those of an image, in which
    a kernel works at each position of its output. Bytes are those of parameters, gradients and the
    optimizer's state.
    """
    data, mesh = resolved.sections["data"], runs.mesh_to_use(resolved)
    with Waiting("reads the data and makes the model"):
        if getattr(resolved.model, "vocab_size", None) or getattr(data, "size", None):
            trainer = abstract_trainer(resolved, mesh)
        else:
            try:
                trainer = Trainer(resolved.run, runs.build_task(resolved, None, mesh), mesh)
            except LabError as error:
                hint = "or state sizes: --config.model.vocab_size=N, --config.data.size=(224,224)"
                raise LabError(f"{error}; {hint}") from error
    config, shapes = trainer.task.model_config, learned(trainer.param_shapes)
    state = trainer.abstract_state
    # What is frozen has neither a gradient nor a state of the optimizer.
    copies, moments = 1 if trainer.adapted else 2, moments_of(state.opt_state, shapes)
    positions = positions_of(trainer.task.model, trainer.param_shapes)
    flops, total, held = "FLOPs an image" if positions else "FLOPs a token", 0, 0
    for name, (modules, arrays) in modules_of(shapes, positions).items():
        sizes = {leaf: len(modules) * math.prod(shape) for leaf, shape in arrays.items()}
        work = 6 * sum(size for leaf, size in sizes.items() if leaf.endswith("kernel"))
        work *= positions.get(modules[0], 1)
        size = 4 * copies * sum(sizes.values()) + sum(moments[module] for module in modules)
        total, held = total + work, held + size
        yield {
            "module": name,
            "shapes": ", ".join(f"{leaf} {'x'.join(map(str, s))}" for leaf, s in arrays.items()),
            "parameters": f"{sum(sizes.values()):,}",
            flops: short(work) if work else "-",
            "bytes": f"{size:,}",
        }
    groups = costs.parameter_groups(resolved.model_kind, config)
    idle, each = idle_parameters(config), _costs(config, groups)
    whole = _bytes(state.params) + _bytes(state) if not trainer.adapted else _bytes(state)
    line = dict.fromkeys(("module", "shapes", "parameters", flops, "bytes"), "-")
    if not trainer.adapted:
        rest = "counts of steps, running statistics"
        yield line | {"module": rest, "bytes": f"{whole - held:,}"}
    yield line | {
        "module": "all",
        "parameters": f"{sum(groups.values()):,}",
        flops: short(total) if positions else each["FLOPs a token"],
        "bytes": f"{whole:,}",
    }
    working = f"{sum(groups.values()) - idle:,}" if idle else "-"
    for name, value in (
        ("parameters that work for a token", working),
        ("cache bytes a token", each["cache bytes a token"]),
    ):
        if value != "-":
            yield line | {"module": name, "parameters": value}


def positions_of(model: Any, shapes: Any) -> dict[str, int]:
    """At how many positions of an image each dense or convolutional module works, by its path; {}
    for a model without 2-D convolutions or without a size of its images."""
    config, found = model.config, {}
    kernels = (leaf for leaf in jax.tree.leaves(shapes) if len(leaf.shape) == 4)
    if not getattr(config, "image_size", None) or not any(kernels):
        return found

    def counted(call, args, kwargs, context):
        out, module = call(*args, **kwargs), context.module
        if context.method_name == "__call__" and module.has_variable("params", "kernel"):
            width = module.get_variable("params", "kernel").shape[-1]
            found["/".join(module.path)] = out.size // width
        return out

    image = jnp.zeros((1, *config.image_size, config.channels))
    with nn.intercept_methods(counted):
        jax.eval_shape(model.apply, {"params": shapes}, image)
    return found


def moments_of(opt_state: Any, shapes: Any) -> Counter[str]:
    """The bytes that the optimizer holds for the arrays of each module, by the module's path."""
    paths, found = set(flatten_dict(shapes, sep="/")), Counter()
    for keys, leaf in jax.tree_util.tree_flatten_with_path(opt_state)[0]:
        names = [key.key for key in keys if isinstance(key, jax.tree_util.DictKey)]
        ends = ("/".join(names[i:]) for i in range(len(names)))
        if path := next((end for end in ends if end in paths), ""):
            found[path.rpartition("/")[0] or path] += leaf.size * leaf.dtype.itemsize
    return found


def modules_of(
    shapes: Any, positions: dict[str, int]
) -> dict[str, tuple[list[str], dict[str, tuple[int, ...]]]]:
    """The modules of a tree of arrays by path: the paths of those that are alike, and the arrays of
    one. Layers that hold the same arrays, at as many positions, are one line, such as
    encoder/layer_0..5/attention/query."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for path, leaf in flatten_dict(shapes, sep="/").items():
        module, _, name = path.rpartition("/")
        found.setdefault(module or name, {})[name] = tuple(leaf.shape)
    alike: dict[tuple, list[str]] = {}
    for module, arrays in found.items():
        what = (LAYER.sub("layer_*", module), positions.get(module, 1), *sorted(arrays.items()))
        alike.setdefault(what, []).append(module)
    lines = {}
    for modules in alike.values():
        numbers = [match[1] for module in modules if (match := LAYER.search(module))]
        name = modules[0]
        if len(modules) > 1:
            name = LAYER.sub(f"layer_{numbers[0]}..{numbers[-1]}", name)
        lines[name] = modules, found[modules[0]]
    return lines


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
    names = [name for name in rows[0] if any(row[name] not in ("-", "") for row in rows)]
    print_table(names, [[row[name] for name in names] for row in rows])


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
