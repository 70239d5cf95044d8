"""Where a run's first weights come from: another run, or a Hugging Face directory ("hf:DIR").

What an adapted run leaves frozen is not in its checkpoints, so each holds a record of its base:
where it lay, which step, and a fingerprint of the leaves that were taken from it.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_lab.errors import LabError
from transformer_lab.ops.losses import STATISTICS
from transformer_lab.tasks.base import Params, Task, learned
from transformer_lab.training import places
from transformer_lab.training.checkpoint import Checkpoints, Saved
from transformer_lab.training.config import Resolved, flatten
from transformer_lab.training.mesh import path_of
from transformer_lab.training.state import TrainState
from transformer_lab.training.trainer import Trainer
from transformer_lab.training.writers import log

HF = "hf:"
TEXT_FILES = {".json", ".model", ".spm", ".txt"}  # a tokenizer's, among a directory's others
OTHERS = re.compile(r"config\.json|generation_config\.json|.*\.index\.json")

# Settings of a model that a run sets itself when it takes the others from --init_from.
OWN = re.compile(
    r"kind|head|labels|classes|.*dropout|drop_path|adapter_width|dtype|attention_implementation|"
    r"scan_layers|remat"
)

# A pattern of all parameters but the outputs of classes, and then the user's pattern.
BUT_CLASSES = r"^(?!out/|.*classifier/).*(?:{})"


class Source(NamedTuple):
    """The weights of a trained model, with its tokenizer's files and its settings."""

    place: str  # as --init_from has it, with an absolute path
    step: int | None
    params: Params  # host arrays
    assets: dict[str, bytes]  # the tokenizer's files
    model: dict[str, Any]  # its settings


def open_source(init_from: str, step: int | None = None) -> Source:
    """Reads the weights of hf:DIR, or of a run: its newest, or those of `step` if it has them.

    Raises: LabError if they are gone, damaged or those of an adapted run.
    """
    if init_from.startswith(HF):
        return _open_hf(init_from.removeprefix(HF))
    workdir = places.place(init_from).absolute()
    if not workdir.is_dir():
        raise LabError(f"--init_from={init_from}: there is no such directory")
    with Checkpoints(workdir, 1, log) as checkpoints:
        good = checkpoints.newest(1 if step is None else None)
        if not good:
            raise LabError(f"--init_from={init_from}: it holds no good checkpoint")
        saved = checkpoints.read(step if step in good else good[-1])
        if step is None and saved.config.get("best"):
            checkpoints.kept_score = saved.config["best"]
            saved = checkpoints.read(checkpoints.scored(1)[-1])
        if saved.base:
            raise LabError(
                f"--init_from={init_from}: it holds only what was adapted of a model; make one of "
                f"it with python -m transformer_lab merge --workdir={init_from} --target=DIR"
            )
        params = checkpoints.restore_params(saved.step)
    return Source(str(workdir), saved.step, params, saved.assets, saved.config["model"])


def _open_hf(name: str) -> Source:
    from transformer_lab import pretrained  # needs safetensors, which other runs do without

    directory = pretrained.local(name).absolute()
    found = pretrained.load(directory)
    for note in found.notes:
        log(note)
    files = (p for p in directory.iterdir() if p.suffix in TEXT_FILES and p.is_file())
    assets = {p.name: p.read_bytes() for p in files if not OTHERS.fullmatch(p.name)}
    model = {"kind": found.kind, **vars(found.config)}
    return Source(f"{HF}{directory}", None, found.params, assets, model)


def within(source: Source, part: str) -> Source:
    """The source as the part of a larger model at this path, such as a tower. Its files are then
    called PART.NAME."""
    if not part:
        return source
    learnt, statistics = learned(source.params), source.params.get(STATISTICS)
    return source._replace(
        params={part: learnt} | ({STATISTICS: {part: statistics}} if statistics else {}),
        assets={f"{part}.{name}": content for name, content in source.assets.items()},
        model={part: source.model},
    )


def reopen_base(base: dict[str, Any], place: str = "") -> Source:
    """The source that an adapted run's record names; `place` is where it lies now, if it was moved.
    Raises: LabError if it cannot be read."""
    try:
        found = open_source(place or base["place"], base["step"])
        return within(found, base.get("into", ""))
    except LabError as error:
        raise LabError(
            f"the base of this adapted run cannot be read, say where it lies with --init_from "
            f"({error})"
        ) from error


def source_of(resolved: Resolved, saved: Saved | None, init_from: str, into: str) -> Source | None:
    """What a new run starts from, or the base that a resumed run's checkpoints lack; else None."""
    if saved:
        return reopen_base(saved.base, init_from) if saved.base else None
    method = resolved.run.adapt.method
    if method != "full" and not init_from:
        raise LabError(
            f'adapt.method = "{method}" adapts a trained model: say which by --init_from'
        )
    return within(open_source(init_from), into) if init_from else None


def task_from(
    source: Source | None, saved: Saved | None, build: Callable[[dict | None], Task]
) -> tuple[Task, str]:
    """The task that `build` makes of a checkpoint's files, and which of the source's parameters are
    taken, a pattern in which {} stands for --init_pattern.

    Those are all; but a new run whose data has other classes than its source takes all but the
    outputs of classes, and not the files that name them.
    """
    task = build(where.assets if (where := saved or source) else None)
    if saved or not source or (kept := task.kept_files()) == source.assets:
        return task, "{}"
    log(f"the head starts anew, since the data has other classes than {source.place}")
    return build(kept), BUT_CLASSES


def with_model(
    config: ConfigDict, previous: dict[str, Any] | None, source: Source | None
) -> ConfigDict:
    """The config with the model's sizes from the directory's run, or else from what it starts from.

    Settings that are no sizes stay the config's own: head, dropout, adapters, how it is computed.
    """
    model = previous["model"] if previous else source.model if source else None
    if model is None:
        raise LabError("model_from_init = True takes the model of --init_from, which is missing")
    if model.get("kind", config.model.kind) != config.model.kind:
        raise LabError(
            f'--init_from holds a model of kind "{model["kind"]}", config.model.kind is '
            f'"{config.model.kind}"'
        )
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.model.update(_sizes(model, config.model))
    return config


def _sizes(model: dict[str, Any], section: ConfigDict) -> dict[str, Any]:
    """The settings of a section, and of its subsections, that the base model decides."""
    taken = {k: v for k, v in model.items() if k in section and not OWN.fullmatch(k)}
    for key, part in taken.items():
        if isinstance(section[key], ConfigDict):
            taken[key] = _sizes(part if isinstance(part, dict) else vars(part), section[key])
    return taken


def show_differences(base: dict[str, Any], model: dict[str, Any]) -> None:
    """Logs the settings that both models have, but with different values."""
    base, model = flatten(base), flatten(model)
    differing = [f"{k} = {v!r}" for k, v in base.items() if k in model and model[k] != v]
    if differing:
        log(f"init_from: its model has other settings than this one: {', '.join(differing)}")


def take(
    trainer: Trainer, source: Source, pattern: str, into: str = ""
) -> tuple[TrainState, dict[str, Any] | None]:
    """A new state with the source's arrays whose paths match and shapes fit, and a record of them.

    Logs what became of each. The record, for an adapted run's checkpoints, is None for others; the
    source is at the part `into`. Raises: LabError if an array that the run freezes is not loaded.
    """
    state = trainer.init()
    params, lists = merge_params(trainer.whole(state), source.params, pattern)
    step = "" if source.step is None else f" step {source.step}"
    for name, paths in lists.items():
        log(f"init_from{step}: {name} {len(paths)}: {in_short(paths)}")
    if not lists["loaded"]:
        raise LabError(f'--init_from: no parameter fits the pattern "{pattern}"')
    state = trainer.with_params(state, params)
    if not trainer.adapted:
        return state, None
    _refuse_new(trainer, lists["new"], leaves(source.params))
    record = {"place": source.place, "step": source.step, "pattern": pattern, "into": into}
    return state, record | {"sha256": fingerprint(source.params, lists["loaded"])}


def take_frozen(
    trainer: Trainer, state: TrainState, source: Source, base: dict[str, Any]
) -> TrainState:
    """The state with its frozen arrays. Raises: LabError unless the source is the recorded one."""
    first = trainer.init()
    params, lists = merge_params(trainer.whole(first), source.params, base["pattern"])
    now = fingerprint(source.params, lists["loaded"])
    if now != base["sha256"]:
        raise LabError(
            f"the base in {source.place} has the fingerprint {now[:12]}, this run was trained on "
            f"{base['sha256'][:12]} from {base['place']}: say where that lies with --init_from"
        )
    return state.replace(frozen=trainer.with_params(first, params).frozen)


def merge_params(
    params: Params, stored: Params, pattern: str
) -> tuple[Params, dict[str, list[str]]]:
    """`params` with the stored arrays of equal path and shape in whose path the pattern is found.

    The lists name the paths loaded, new (kept as initialised) and skipped (stored, not used).
    """
    flat = leaves(stored)
    loaded, new = [], []

    def take(key_path, leaf):
        path = path_of(key_path)
        fits = path in flat and flat[path].shape == leaf.shape
        if fits and re.search(pattern, path):
            loaded.append(path)
            return flat[path].astype(leaf.dtype)
        new.append(path)
        return leaf

    merged = jax.tree_util.tree_map_with_path(take, params)
    skipped = sorted(flat.keys() - set(loaded))
    return merged, {"loaded": loaded, "new": new, "skipped": skipped}


def in_short(paths: list[str], most: int = 12) -> str:
    """Paths with commas between; of many the first parts, each with the number of its paths."""
    if len(paths) <= most:
        return ", ".join(paths) or "-"
    firsts = Counter(path.partition("/")[0] for path in paths)
    return ", ".join(f"{first} ({count})" for first, count in firsts.items())


def leaves(tree: Params) -> dict[str, Any]:
    """The arrays of a tree by path."""
    return {path_of(p): x for p, x in jax.tree_util.tree_flatten_with_path(tree)[0]}


def fingerprint(params: Params, paths: list[str]) -> str:
    """SHA-256 over the paths, types, shapes and values of the arrays at these paths."""
    digest, flat = hashlib.sha256(), leaves(params)
    for path in sorted(paths):
        value = np.ascontiguousarray(flat[path])
        digest.update(f"{path} {value.dtype} {value.shape}\n".encode())
        digest.update(value.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _refuse_new(trainer: Trainer, new: list[str], stored: dict[str, Any]) -> None:
    """Raises: LabError if an array would be frozen at its random initial values."""
    trained = leaves(trainer.abstract_state.params)
    for path in new:
        if path in trained:
            continue
        shape = list(leaves(trainer.param_shapes)[path].shape)
        have = list(stored[path].shape) if path in stored else "absent"
        raise LabError(
            f"{path} would be frozen without being loaded: it is {have} in the base and {shape} "
            "here; give config.model the base's sizes, or widen --init_pattern or adapt.train"
        )
