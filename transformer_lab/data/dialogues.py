"""Loads what language models are aligned by: instructions with answers, and preferred answers."""

from dataclasses import dataclass
from typing import NamedTuple

from transformer_lab.data.splits import SourceConfig, Splits, key, split_by_share

Turns = tuple[tuple[str, str], ...]  # (role, text) of each turn
# Plain texts have these roles, and nothing is written around them; those of a chat are others.
PROMPT, ANSWER = "prompt", "answer"
ROLES = ("system", "user", "assistant")
ANSWERS = (ANSWER, "assistant")  # what a model is trained to say


class Instruction(NamedTuple):
    """A text in turns, of which a model learns the answers; the last turn is one."""

    turns: Turns


class Preference(NamedTuple):
    """A prompt with the better and the worse of two answers, and by how much it is better."""

    prompt: Turns
    chosen: Turns
    rejected: Turns
    margin: float


Row = Instruction | Preference


@dataclass(frozen=True)
class InstructionsConfig(SourceConfig):
    """Settings of instructions: the source, its files, the splits and a limit."""

    source: str = "files"  # files | sums | brackets
    path: str = ""  # the user's file or folder
    validation_share: float = 0.1  # of the rows; splits that the source has stay as they are
    test_share: float = 0.1  # held out for the final scores
    max_examples: int = 0  # training rows at most (0 = all); held-out ones stay the same
    split_seed: int = 0  # another number holds out others

    KIND = "instructions"


@dataclass(frozen=True)
class PreferencesConfig(InstructionsConfig):
    """Settings of preferences: the same for pairs of answers."""

    source: str = "hellaswag"  # hellaswag | piqa | files

    KIND = "preferences"


def load_dialogues(config: InstructionsConfig) -> Splits:
    """The rows of a config, fetched when first used; equal configs give equal splits.

    Ignoring case and white space, no training row is in another split or occurs twice, and no
    prompt is in two new splits."""
    return split_by_share(config, "max_examples", row_key, limit_name=row_key)


def row_key(row: Row) -> str:
    """The text by which rows are compared; "" for a row with an answer without text."""
    if isinstance(row, Instruction):
        parts, answers = [row.turns], row.turns[-1:]
    else:
        parts, answers = list(row[:3]), (*row.chosen[-1:], *row.rejected[-1:])
    blank = not all(text.strip() for _, text in answers)
    return "" if blank else "\0".join(key(text) for turns in parts for _, text in turns)


def plain(prompt: str, answer: str) -> Instruction:
    """An instruction without a chat around it."""
    return Instruction(((PROMPT, prompt), (ANSWER, answer)))


def opening(row: Row) -> str:
    """The text that comes before a row's first answer, which groups rows for the splits."""
    turns = row.turns if isinstance(row, Instruction) else row.prompt
    texts = []
    for role, text in turns:
        if role in ANSWERS:
            break
        texts.append(key(text))
    return "\0".join(texts)
