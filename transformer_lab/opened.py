"""A trained run for Python: `transformer_lab.open_run("runs/gpt").generate("The jury said")`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer_lab.data.audio import AudioFile
from transformer_lab.decoding.speech import Segment
from transformer_lab.errors import LabError
from transformer_lab.ops.pooling import normalize as normalize_to_one
from transformer_lab.ops.spectrograms import RATE
from transformer_lab.tasks import objective
from transformer_lab.tasks.abilities import (
    Continues,
    Detects,
    EmbedsImages,
    EmbedsTexts,
    Predicts,
    Transcribes,
    Translates,
    named_objects,
)
from transformer_lab.tasks.base import count_parameters
from transformer_lab.text.stream import dropped_blank
from transformer_lab.text.tokenizer import clean
from transformer_lab.training import report, runs
from transformer_lab.training.config import default_config, from_stored, resolve
from transformer_lab.training.places import place
from transformer_lab.viewing.capture import Inputs, capture
from transformer_lab.viewing.document import Page
from transformer_lab.viewing.page import page

ABILITIES = (  # what a task can do, and the method of a run that does it
    (Continues, "generate"), (Translates, "translate"), (Predicts, "predict"),
    (Detects, "detect"), (Transcribes, "transcribe"), (EmbedsTexts | EmbedsImages, "encode"),
)  # fmt: skip


class OpenedRun:
    """A trained run with its parameters on the devices, and methods for what its task can do.

    A method that the task does not support raises LabError, which names the run's task. `task`,
    `params` (of the whole model) and `place` (moves a host batch to the devices) serve for all
    else.
    """

    def __init__(self, config: Any, task: Any, params: Any, place: Any, workdir: Path):
        self.config, self.task, self.params, self.place = config, task, params, place
        self.workdir = workdir

    @classmethod
    def of(
        cls,
        workdir: str | Path,
        changes: Mapping[str, Any] | None = None,
        average: int = 0,
        init_from: str = "",
    ) -> "OpenedRun":
        """Opens a run's directory, as `open_run`."""
        workdir = place(workdir)
        config = from_stored(runs.stored_config(workdir))
        config.update_from_flattened_dict(dict(changes or {}))
        trainer, params = runs.open_run(config, workdir, average, init_from)
        return cls(config, trainer.task, params, trainer.place, workdir)

    def __repr__(self) -> str:
        can = ", ".join(name for ability, name in ABILITIES if isinstance(self.task, ability))
        size = f"{count_parameters(self.params):,} parameters"
        what = f"{self.config.task.kind} by a model {self.config.model.kind} of {size}"
        return f"<run {self.workdir}: {what}; it can {can or 'give params'}>"

    def _repr_html_(self) -> str:
        return report.shown(self.workdir)

    def attend(
        self, text: str | None = None, text_b: str | None = None, image: str | None = None
    ) -> Page:
        """The attention of a text, of a text and a second one or its translation, or of an image,
        as a page that a notebook shows; `save` writes it."""
        inputs = Inputs(text, text_b, image, None, False, False)
        maps = capture(self.task, self.params, inputs, self.place)
        return Page(page(maps, f"{self.workdir.name}: {text or image}"))

    def logits(self, text: str, target: str | None = None) -> Float[np.ndarray, "t v"]:
        """The scores [tokens, vocabulary] of what comes next; softmax of a row gives probabilities.

        A language model gives one row after each token that it reads of the text; a
        sequence-to-sequence model one before each token of the target, the end token last.
        """
        task = self.task
        if isinstance(task, Continues) and target is None:
            inputs = [task.prompt_ids(text)]
        elif isinstance(task, Translates) and target is not None:
            source, ids = task.encode(text), task.encode(target)
            inputs = [source, [1] * len(source), [task.tokenizer.bos_id, *ids[:-1]]]
        else:
            raise self._refusal("give logits of a text, or of a text and a target, which")
        rows = [jnp.asarray([ids], jnp.int32) for ids in inputs]
        rows[1:2] = [mask != 0 for mask in rows[1:2]]
        run = jax.jit(lambda params: task.model.apply({"params": params}, *rows))
        return np.asarray(run(self.params)[0], np.float32)

    def generate(
        self, prompts: str | Sequence[str], samples: int = 1, seed: int = 0
    ) -> list[str] | list[list[str]]:
        """Continuations of a prompt, or of each of several prompts, without the prompt itself.

        There are `samples` of them, drawn if `decode.temperature` is above 0, or a beam search's
        `n_best`.
        """
        task, several = self._able(Continues, "continue a prompt"), _listed(prompts)
        ids = [task.prompt_ids(clean(prompt)) for prompt in several]
        generator = task.generator(self.place)
        generator.shrinks = True  # a prompt may fill the context but for one token
        found, texts = generator(self.params, ids, samples, seed, task.stops), []
        for prompt, own, some in zip(several, ids, found, strict=True):
            blank = dropped_blank(task.tokenizer, prompt, task.without_start(own))
            texts.append([task.text_of(one, own).removeprefix(blank) for one in some])
        return texts[0] if isinstance(prompts, str) else texts

    def translate(self, texts: str | Sequence[str]) -> str | list[str]:
        """The best output for a text, or for each of several texts."""
        task, several = self._able(Translates, "translate"), _listed(texts)
        best = [
            found[0] for found in task.translate(task.decoder(self.place), self.params, several)
        ]
        return best[0] if isinstance(texts, str) else best

    def predict(self, texts: str | Sequence[str]) -> dict[str, Any] | list[dict[str, Any]]:
        """The prediction for a text, or for each of several: label, tags, answer or fillings.

        A run on images takes image files in place of texts.
        """
        found = self._able(Predicts, "predict").predict(self.params, _listed(texts), self.place)
        return found[0] if isinstance(texts, str) else found

    def detect(self, image: str | Path, threshold: float = 0.5) -> list[dict[str, Any]]:
        """The objects in an image file, best first: label, score, and box (left, top, right and
        bottom in pixels) of each whose score reaches the threshold."""
        task = self._able(Detects, "detect")
        return named_objects(task, task.detect(self.params, str(image), self.place)[1], threshold)

    def transcribe(self, file: str | Path) -> list[Segment]:
        """What is said in a file of audio: pieces of text, each with the seconds it is heard in."""
        transcriber = self._able(Transcribes, "transcribe").transcriber()
        return list(transcriber({"params": self.params}, AudioFile(file, RATE)))

    def encode(
        self, texts: Sequence[str], pooling: str = "mean", normalize: bool = True
    ) -> Float[np.ndarray, "n d"]:
        """A vector for each text: an encoder's pooled states, or what the text tower gives.

        A run on images alone takes image files in place of texts, and gives their features.
        """
        if isinstance(self.task, EmbedsTexts):
            return np.asarray(self.task.text_vectors(self.params, texts, self.place))
        if isinstance(self.task, EmbedsImages):
            images = self.task.read_images(texts)
            vectors = jnp.asarray(self.task.image_vectors(self.params, images, self.place))
            return np.asarray(normalize_to_one(vectors) if normalize else vectors)
        if self.config.model.kind != "encoder":
            raise self._refusal("encode texts")
        model, assets = self.task.model_config, self.task.assets()
        task = embedding_task(model, assets, pooling, normalize)
        return task.embed(self.params, texts, self.place)

    def _able(self, ability: type, what: str) -> Any:
        """Returns the task. Raises: LabError if the task lacks this ability."""
        if not isinstance(self.task, ability):
            raise self._refusal(what)
        return self.task

    def _refusal(self, what: str) -> LabError:
        return LabError(f"a run of {self.config.task.kind} does not {what}: {self.workdir}")


def _listed(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def open_run(
    workdir: str | Path,
    changes: Mapping[str, Any] | None = None,
    average: int = 0,
    init_from: str = "",
) -> OpenedRun:
    """Opens a trained run's directory.

    Args:
        changes: dotted keys of the config, such as {"decode.temperature": 0.8}.
        average: how many checkpoints to average; 0: as the config says.
        init_from: where an adapted run's base lies now, if it was moved.

    Raises: LabError for a directory without a valid checkpoint, or an impossible change.
    """
    return OpenedRun.of(workdir, changes, average, init_from)


def embedding_task(model: Any, assets: dict[str, bytes], pooling: str, normalize: bool) -> Any:
    """A sentence-embedding task around an encoder that was trained for any task."""
    config = default_config(model="encoder", task="sentence_embedding")
    config.task.update(pooling=pooling, normalize=normalize)
    config.batch.max_length = model.max_length
    resolved = resolve(config)
    build = objective("sentence_embedding").build
    return build("encoder", model, resolved.sections, assets=assets)
