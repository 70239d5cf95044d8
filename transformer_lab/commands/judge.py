"""Compares two runs by their answers to the same prompts, judged by a scorer or by a person.

    transformer_lab judge --a=runs/sft --b=runs/grpo --prompts=prompts.jsonl --scorer=exact
    transformer_lab judge --a=runs/gpt --b=runs/sft --prompts=prompts.jsonl

Each line of the file is {"prompt": TEXT, "answer": EXPECTED}; a scorer is a file of text/rewards.
Without one a person is shown both answers in a random order and types 1, 2 or 0 (equal), or q to
end. The last line is JSON: wins, ties, and by how much the rating of A is higher (Bradley-Terry, in
nats), with its 95 % interval over the prompts.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import flags

from transformer_lab import cli, opened
from transformer_lab.data.formats import dialogues
from transformer_lab.errors import LabError, check_file
from transformer_lab.kinds import kind
from transformer_lab.tasks.ratings import interval

REWARDS = "transformer_lab.text.rewards"
RESULTS = {"1": 1, "2": -1, "0": 0}


def define() -> None:
    flags.DEFINE_string("a", None, "The directory of one run.", required=True)
    flags.DEFINE_string("b", None, "That of another.", required=True)
    flags.DEFINE_string("prompts", None, "A file of JSON lines.", required=True)
    flags.DEFINE_string("scorer", "", "exact, brackets, chrf; by default a person judges.")
    flags.DEFINE_integer("limit", 0, "The first so many prompts (0: all).", lower_bound=0)
    flags.DEFINE_integer("seed", 0, "Of the sampling and of the order.", lower_bound=0)


def main(_: list[str]) -> None:
    args = flags.FLAGS
    judge = args.scorer and kind(REWARDS, "def reward", "--scorer", args.scorer).reward
    rows = [item.row.turns for item in dialogues.read(check_file(Path(args.prompts)), False)]
    rows = rows[: args.limit or None]
    if not rows or any(len(turns) != 2 for turns in rows):
        raise LabError(f"{args.prompts}: give prompts with one answer each, at least one")
    asked, wanted = ([turns[n][1] for turns in rows] for n in range(2))
    a, b = ([texts[0] for texts in opened.open_run(run).generate(asked, seed=args.seed)]
            for run in (args.a, args.b))  # fmt: skip
    every = list(zip(asked, wanted, a, b, strict=True))
    if judge:
        found = [
            np.sign(judge(prompt, x, right) - judge(prompt, y, right))
            for prompt, right, x, y in every
        ]
    else:
        found = list(by_person(every, random.Random(args.seed)))
    results = np.asarray(found, np.int64)
    if not len(results):
        raise LabError("nothing was judged")
    higher, low, high = interval(results)
    count = {"a": int((results > 0).sum()), "b": int((results < 0).sum())}
    print(json.dumps({
        "wins": count, "ties": len(results) - sum(count.values()),
        "a_rated_higher_by": round(higher, 4), "interval": [round(low, 4), round(high, 4)],
    }))  # fmt: skip


def by_person(every: list[tuple[str, str, str, str]], draw: random.Random) -> Iterator[int]:
    """What a person at the terminal says of each pair: 1 for A, -1 for B, 0 for neither."""
    given = cli.input_lines()
    for prompt, _, a, b in every:
        turned = draw.random() < 0.5
        first, second = (b, a) if turned else (a, b)
        print(f"\n{prompt}\n  1: {first}\n  2: {second}\n1, 2, 0 (equal) or q? ", flush=True)
        said = next((line.strip() for line in given if line.strip() in (*RESULTS, "q")), "q")
        if said == "q":
            return
        yield -RESULTS[said] if turned else RESULTS[said]
