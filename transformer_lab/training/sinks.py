"""Other places for a run's numbers: Weights & Biases and MLflow, if `config.sinks` names them."""

import importlib
import uuid
from pathlib import Path
from typing import Any, Protocol

from transformer_lab.errors import LabError, known


class Sink(Protocol):
    """What the one writer of metrics gives each line to."""

    def write(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Wandb:
    """A run of Weights & Biases, whose id is kept in the directory, since many directories share a
    name: a resumed run goes on with it."""

    def __init__(self, workdir: Path):
        wandb, kept = _module("wandb"), workdir / "wandb.txt"
        if not kept.exists():
            kept.write_text(uuid.uuid4().hex)
        how = {"name": workdir.name, "id": kept.read_text(), "resume": "allow"}
        self._run = wandb.init(dir=str(workdir), **how)

    def write(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, whose id is kept in the directory, so that a resumed run goes on with it."""

    def __init__(self, workdir: Path):
        self._mlflow, kept = _module("mlflow"), workdir / "mlflow.txt"
        if kept.exists():
            self._mlflow.start_run(run_id=kept.read_text())
        else:
            kept.write_text(self._mlflow.start_run(run_name=workdir.name).info.run_id)

    def write(self, step: int, values: dict[str, float]) -> None:
        self._mlflow.log_metrics(values, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


SINKS = {"wandb": Wandb, "mlflow": MLflow}


def open_sinks(names: tuple[str, ...], workdir: Path) -> list[Sink]:
    """The sinks of these names. Raises: LabError for an unknown one, or one that is missing."""
    return [SINKS[known("config.sinks: ", name, SINKS)](workdir) for name in names]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LabError(f'config.sinks = ("{name}",): pip install {name}') from error
