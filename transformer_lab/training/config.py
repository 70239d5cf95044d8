"""Configs: `ml_collections` at the edge, frozen dataclasses inside.

A config file's `get_config(arg)` starts from `default_config(model, task)`, a locked ConfigDict
that holds every key there is, and changes some. `resolve` turns it into dataclasses and refuses
what they refuse, before anything is compiled or written.
"""

import dataclasses
import re
import types
import typing
from typing import TYPE_CHECKING, Any

from transformer_lab import models, tasks
from transformer_lab.decoding.config import BASES
from transformer_lab.errors import LabError, at_least, chosen, fractions, nearest, within
from transformer_lab.ops.layout import AXES

if TYPE_CHECKING:  # the dataclasses, and with them mesh and optimizer, do not need the package
    import ml_collections


METHODS = ("full", "head", "last", "bias", "lora", "adapters")
LOWER = re.compile(r"loss|perplexity|bits_per|error|ctc|smape|mase|(^|_)[cw]er($|_)")


def lower_is_better(score: str) -> bool:
    """Whether less of a score is better, by its name: of losses and error rates, not of BLEU."""
    return LOWER.search(score) is not None


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """The number of devices along each mesh axis; one of them may be -1, for all the rest."""

    data: int = -1  # copies of the model
    fsdp: int = 1  # parameters and optimizer state split, gathered a layer at a time when used
    tensor: int = 1  # heads and feed-forward units split
    sequence: int = 1  # the positions of a sequence split
    expert: int = 1  # the experts of a layer split; all else as with data
    slice: int = 1  # copies of the model on slices that a slow network joins
    rules: str = ""  # extra sharding rules, "regex=axis,axis;...", before the built-in ones

    def __post_init__(self):
        sizes = {axis: getattr(self, axis) for axis in AXES}
        if any(s == 0 or s < -1 for s in sizes.values()) or list(sizes.values()).count(-1) > 1:
            raise LabError(f"mesh {sizes}: sizes are positive, and one may be -1: the rest")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning-rate schedule; both count optimizer steps from 1."""

    name: str = "adam"  # adam | sgd | adafactor | lion | muon
    learning_rate: float = 1e-3  # the peak of the schedule
    schedule: str = "inverse_sqrt"  # inverse_sqrt | flat_inverse_sqrt | cosine | linear | constant
    warmup_steps: int = 400  # the rate rises linearly from 0
    end_factor: float = 0.0  # share of the peak at the last step of cosine and linear
    b1: float = 0.9  # decay of the mean gradient (Adam, Lion, Muon)
    b2: float = 0.98  # decay of the mean squared gradient (Adam), or of Lion's momentum
    epsilon: float = 1e-9  # added to the root of the mean squared gradient
    weight_decay: float = 0.0  # decoupled, times the learning rate (Loshchilov 2019)
    weight_decay_pattern: str = r"kernel$"  # found in the paths of parameters that decay
    clip_norm: float = 0.0  # greatest norm of the accumulated gradient; 0: no clipping
    multipliers: str = ""  # factors on the rate by path, "regex=0.1;regex=2"; the first that fits
    layer_decay: float = 1.0  # factor on the rate for each layer further down (Howard 2018, 3.2)

    def __post_init__(self):
        positive = ("learning_rate", "warmup_steps", "end_factor", "weight_decay", "clip_norm")
        at_least(self, "optimizer", 0, *positive, "epsilon")
        fractions(self, "optimizer", "b1", "b2")
        if not 0 < self.layer_decay <= 1:
            raise LabError(f"optimizer.layer_decay = {self.layer_decay} is not in (0, 1]")


@dataclasses.dataclass(frozen=True)
class AdaptConfig:
    """Which parameters of a model from --init_from a run trains (see `training.adapting`)."""

    method: str = "full"  # full | head | last | bias | lora | adapters
    train: str = r"(classifier|pooler|nsp)/"  # other paths that train, a new head's; "": none
    last_layers: int = 2  # layers of each stack that train with method = "last"
    rank: int = 8  # lora's rank
    alpha: float = 16.0  # lora's change is scaled by alpha / rank
    dropout: float = 0.0  # the rate of dropping lora's input features
    targets: str = r"(query|value)/kernel$"  # the kernels that lora changes
    # The type of frozen parameters: bfloat16 for all matrices, int8 and nf4 for kernels
    base: str = "float32"

    def __post_init__(self):
        chosen(self, "adapt", {"method": METHODS, "base": BASES})
        at_least(self, "adapt", 1, "last_layers", "rank")
        fractions(self, "adapt", "dropout")
        if self.alpha <= 0:
            raise LabError(f"adapt.alpha = {self.alpha} must be more than 0")
        if self.method == "full" and self.base != "float32":
            raise LabError(f'adapt.base = "{self.base}" needs an adapt.method that freezes a base')


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Settings of the training loop itself, of any task."""

    seed: int = 0  # of initial values, dropout, and the order of the data
    steps: int = 1000  # optimizer steps
    # Takes the place of steps, unless the command line has --config.steps alone.
    epochs: float | None = None
    model_from_init: bool = False  # the model's sizes are those of --init_from
    micro_batches: int = 1  # a step's batch is computed in so many parts
    log_every: int = 50  # steps between two lines of metrics
    eval_every: int = 1000  # steps between two evaluations
    save_every: int = 1000  # steps between two checkpoints
    keep: int = 5  # newest checkpoints that are kept
    average: int = 1  # the final evaluation uses the mean of the last so many checkpoints
    # Decay of the exponential moving average of the parameters, which is then evaluated, decoded
    # and exported, and saved beside those that train; 0: no average
    ema_decay: float = 0.0
    # The validation score, such as loss or bleu, whose best checkpoint is kept besides the newest
    # ones, and is scored at the end, opened and exported; "": the newest one is
    best: str = ""
    patience: int = 0  # evaluations without a better `best` after which training ends; 0: never
    tensorboard: bool = True  # events for TensorBoard besides metrics.jsonl
    sinks: tuple[str, ...] = ()  # other places for metrics: wandb | mlflow
    mesh: MeshConfig = MeshConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    adapt: AdaptConfig = AdaptConfig()

    def __post_init__(self):
        within("steps", self.steps, 0)
        for name in ("micro_batches", "log_every", "eval_every", "save_every", "keep"):
            within(name, getattr(self, name), 1)
        if self.epochs is not None and self.epochs <= 0:
            raise LabError(f"epochs = {self.epochs} must be more than 0")
        if not 0 <= self.ema_decay < 1:
            raise LabError(f"ema_decay = {self.ema_decay} is not in [0, 1)")
        if self.patience < 0 or (self.patience and not self.best):
            raise LabError(
                f"patience = {self.patience} counts evaluations without a better score: it is not "
                'negative, and best names the score, such as best = "loss"'
            )
        if self.best and self.average > 1:
            raise LabError(f'best = "{self.best}" takes one checkpoint, average = {self.average}')
        if not 1 <= self.average <= self.keep:
            raise LabError(f"average = {self.average} must be between 1 and keep = {self.keep}")


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A whole config as frozen dataclasses: the run's, the model's and the task's sections."""

    run: RunConfig
    model_kind: str
    model: Any
    task_kind: str
    sections: dict[str, Any]  # the task's, by name


# How a model is computed, which changes none of its numbers.
COMPUTED = r"model\.(\w+\.)?(scan_layers|remat|attention_implementation)"
FREE_TEXT = frozenset(["decode.stop"])  # texts in which a comma is a comma
# Settings that may change when a run is resumed. The data may have moved: its fingerprint tells
# whether it is the same.
FREE_ON_RESUME = (
    r"(steps|epochs|log_every|eval_every|save_every|keep|average|best|patience|tensorboard|sinks)|"
    rf"micro_batches|(mesh|decode)\..*|batch\.workers|data\.path|{COMPUTED}"
)


def default_config(model: str, task: str) -> "ml_collections.ConfigDict":
    """All keys of a model and task with their defaults, locked so that unknown keys are refused."""
    config = _to_config_dict(RunConfig())
    config.model = _to_config_dict(models.family(model).CONFIG())
    config.model.kind = model
    for name, section in tasks.objective(task).SECTIONS.items():
        config[name] = _to_config_dict(section())
    config.task.kind = task
    return config.lock()


def from_stored(values: dict[str, Any]) -> "ml_collections.ConfigDict":
    """A stored config that can be changed: a key without a value knows the type that it may have.

    Keys that have come since have their defaults, and what is wrong is left for `resolve` to name.
    """
    from ml_collections import ConfigDict

    kinds = [section.get("kind") for name in ("model", "task")
             if isinstance(section := values.get(name), dict)]  # fmt: skip
    if [type(kind) for kind in kinds] != [str, str]:
        return ConfigDict(values)
    config = default_config(*kinds)
    config.unlock()
    with config.ignore_type():
        config.update(values)
    return config


def resolve(config: "ml_collections.ConfigDict") -> Resolved:
    """The dataclasses of a config. Raises: LabError that names an unknown or impossible key."""
    values = config.to_dict()
    model, task = values.pop("model", {}), values.pop("task", {})
    for name, section in (("model", model), ("task", task)):
        if not isinstance(section, dict):
            raise LabError(f"config.{name} = {section!r:.60}: it must be a section of keys")
        if not isinstance(section.get("kind"), str):
            raise LabError(f"config.{name}.kind is missing: start from default_config(model, task)")
    model_kind, task_kind = model.pop("kind"), task.pop("kind")
    values["task"] = task
    classes = tasks.objective(task_kind).SECTIONS
    sections = {name: _from_dict(cls, values.pop(name, {}), name) for name, cls in classes.items()}
    return Resolved(
        run=_from_dict(RunConfig, values, ""),
        model_kind=model_kind,
        model=_from_dict(models.family(model_kind).CONFIG, model, "model"),
        task_kind=task_kind,
        sections=sections,
    )


def renamed(config: dict[str, Any]) -> dict[str, Any]:
    """A stored config in today's values: an old `remat` of True or False becomes a name."""
    if isinstance(config.get("remat"), bool):
        config = config | {"remat": "nothing" if config["remat"] else "off"}
    return {k: renamed(v) if isinstance(v, dict) else v for k, v in config.items()}


def fields_of(instance: Any) -> dict[str, Any]:
    """A dataclass's fields that are not None, as nested dictionaries to update a section with."""
    values = {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance)}
    return {
        name: fields_of(value) if dataclasses.is_dataclass(value) else value
        for name, value in values.items()
        if value is not None
    }


def flatten(
    config: "ml_collections.ConfigDict | dict[str, Any]", prefix: str = ""
) -> dict[str, Any]:
    """A config as one dictionary with dotted keys, such as {"optimizer.learning_rate": 0.001}."""
    values = config if isinstance(config, dict) else config.to_dict()
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat


def _to_config_dict(instance: Any) -> "ml_collections.ConfigDict":
    from ml_collections import ConfigDict, config_dict

    config = ConfigDict()
    hints = typing.get_type_hints(type(instance))
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if dataclasses.is_dataclass(value):
            config[field.name] = _to_config_dict(value)
        elif value is None:  # a plain None could not be overridden on the command line
            base = _base_type(hints[field.name])
            config[field.name] = config_dict.placeholder(typing.get_origin(base) or base)
        else:
            config[field.name] = value
    return config


def _from_dict(cls: type, values: Any, path: str) -> Any:
    if not isinstance(values, dict):
        raise LabError(f"config.{path} = {values!r:.60}: it must be a section of keys")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    kwargs = {}
    for key, value in values.items():
        full = f"{path}.{key}" if path else key
        if key not in fields:
            raise LabError(f"config.{full} is not a key{nearest(key, fields)}")
        if dataclasses.is_dataclass(hints[key]):
            kwargs[key] = _from_dict(hints[key], value, full)
        else:
            kwargs[key] = _coerce(value, hints[key], full)
    return cls(**kwargs)


def _base_type(hint: Any) -> Any:
    """The type X of a hint `X

    None`; any other hint as it is.
    """
    if isinstance(hint, types.UnionType):
        return next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint


def _coerce(value: Any, hint: Any, path: str) -> Any:
    """The value converted to the field's type where nothing is lost, such as 1 to 1.0. Raises:
    LabError for a value of another type."""
    if value is None and isinstance(hint, types.UnionType):
        return None
    base = _base_type(hint)
    origin = typing.get_origin(base) or base
    if origin is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is tuple and isinstance(value, list | tuple):
        item = typing.get_args(base)[0]
        names = path not in FREE_TEXT  # names may stand in one text, a,b
        parts = [p for v in value for p in (v.split(",") if names and isinstance(v, str) else [v])]
        return tuple(_coerce(part, item, path) for part in parts)
    if not isinstance(value, origin) or (origin is int and isinstance(value, bool)):
        raise LabError(
            f"config.{path} = {value!r} is of type {type(value).__name__}, "
            f"it must be {getattr(base, '__name__', base)}"
        )
    return value
