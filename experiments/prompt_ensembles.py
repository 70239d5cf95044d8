"""By which texts should a picture's class be told: by its name, a sentence, several, or synonyms?

python -m transformer_lab sweep --experiment=experiments/clip_batch.py --workdir=runs/clip_batch
python -m transformer_lab sweep --experiment=experiments/prompt_ensembles.py \
    --workdir=runs/prompts

Radford 2021 (section 3.1.4) puts a class's name into a sentence, or into eighty, and takes the mean
of their vectors as the class's. Here the emoji that the runs of the first command have not seen
(382 concepts, chance 0.0026) are named by the name alone, by "a picture of" it, by the mean of four
such sentences, of these in two languages, by the name with its tags, and by the mean of all. Each
seed is a run of the first command: three of softmax and three of the sigmoid, of 200 steps of 256.

2026-11-30, one of 2 cores (Intel Xeon), two minutes: top-1 0.048 by the name, 0.047 by a sentence,
0.049 by four, 0.058 by these in two languages, 0.039 by the name with its tags, 0.057 by all. The
captions that the runs were trained on are names and sentences alike, so that sentences bring
nothing; a second language does.
"""

from functools import cache
from typing import Any

import numpy as np

from transformer_lab.data import emoji
from transformer_lab.data.drawings import plain
from transformer_lab.opened import OpenedRun, open_run
from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import seeds, vary
from transformer_lab.tasks.naming import recalls

RUNS = [
    f"{loss},rows=256,equal_steps,seed={n}" for loss in ("softmax", "sigmoid") for n in range(3)
]
FROM = "runs/clip_batch"
TEXTS = {  # of a concept, each a prompt
    "name": lambda concept: [concept.name],
    "sentence": lambda concept: [f"a picture of {concept.name}"],
    "four_sentences": lambda concept: emoji.prompts(concept.name),
    "two_languages": lambda concept: [
        text
        for language, name in concept.drawings[0].names.items()
        for text in emoji.prompts(name, language)
    ],
    "name_and_tags": lambda concept: [", ".join([concept.name, *concept.tags["en"]])],
    "all": emoji.descriptions,
}
LABELS = {"name": "label", "sentence": "one sentence", "four_sentences": "80 sentences"}


def get_experiment(scale: str) -> Experiment:
    """Both scales are one."""
    return Experiment(
        config="",
        variations=seeds(vary("texts", {name: name for name in TEXTS}), len(RUNS)),
        metric="top1",
        higher_is_better=True,
        columns=("top5",),
        paper=papers.RADFORD_PROMPTS,
        paper_rows=LABELS,
        base="name",
        also=("top5",),
        measure=measure,
    )


def measure(settings: dict[str, Any]) -> dict[str, float]:
    """The share of held-out pictures whose own concept is the nearest, or one of the nearest 5."""
    run, concepts, images = read(RUNS[settings["seed"]])
    prompts = [TEXTS[settings["texts"]](concept) for concept in concepts]
    classes = run.task.class_vectors(run.params, prompts, run.place)
    return recalls("top", images @ classes.T, np.arange(len(concepts)), (1, 5))


@cache
def read(name: str) -> tuple[OpenedRun, list[emoji.Concept], np.ndarray]:
    """A trained run, the concepts that are held out, and the vectors of their pictures."""
    run = open_run(f"{FROM}/{name}")
    task, concepts = run.task, run.task.examples("test")
    pictures = task.data.pictures[[concept.drawings[0].row for concept in concepts]]
    return run, concepts, task.image_vectors(run.params, plain(pictures, task.size), run.place)
