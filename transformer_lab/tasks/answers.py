"""What all alignment tasks share: prompts, answers, which tokens are an answer's, and a head."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_lab import text
from transformer_lab.data import dialogues
from transformer_lab.data.batching import RowsConfig
from transformer_lab.data.dialogues import ANSWER, ANSWERS, PROMPT, Instruction, Turns
from transformer_lab.data.ragged import Ragged
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.generate import Generated
from transformer_lab.errors import LabError, at_least
from transformer_lab.ops.losses import cross_entropy
from transformer_lab.tasks.base import Batch, Params, Place, Scores
from transformer_lab.tasks.language_modeling import LanguageModeling, LanguageModelingConfig

GIVEN, TAUGHT, LATER = 0, 1, 2  # a token of the prompt, of an answer, of a later turn
HEAD = "score_head"  # one number for each state: a reward, or a value


@dataclass(frozen=True)
class AnswersConfig(LanguageModelingConfig):
    """Settings that alignment tasks share; those of language modelling are for generation."""

    layout: str = "packed"
    score_examples: int = 200  # held-out prompts that are answered to be scored, at most
    kinds: str = ""  # a regular expression: prompts with one match of it are scored apart too

    def __post_init__(self):
        super().__post_init__()
        if self.layout != "packed" or self.other_lengths:
            raise LabError('answers need task.layout = "packed" and task.other_lengths = ()')
        at_least(self, "task", 0, "score_examples")
        try:
            re.compile(self.kinds)
        except re.error as error:
            raise LabError(
                f"task.kinds = {self.kinds!r} is no regular expression: {error}"
            ) from None


def sections(task: type, data: type) -> dict[str, type]:
    """The config sections of an alignment task."""
    return {"task": task, "data": data, "batch": RowsConfig, "tokenizer": text.TokenizerConfig,
            "decode": DecodeConfig}  # fmt: skip


def header(role: str) -> str:
    """What is written before a turn: nothing before plain texts, else the role's name."""
    return "" if role in (PROMPT, ANSWER) else f"{role}: "


def pieces_of(turns: Turns) -> Iterator[tuple[str, bool]]:
    """The text of a dialogue in pieces, each with whether a model is taught to write it. A turn of
    a chat ends with a line break."""
    for role, content in turns:
        plain = not header(role)
        yield from [] if plain else [(header(role), False)]
        yield content if plain else f"{content}\n", role in ANSWERS


def written(turns: Turns) -> str:
    """The text of a dialogue."""
    return "".join(piece for piece, _ in pieces_of(turns))


class Answering(LanguageModeling):
    """A language model of prompts and answers; a prompt longer than a row is left out."""

    PREPARED, COUNTED = "", "examples"
    left_out = 0  # training dialogues or pairs that are longer than a row
    load_data = dialogues.load_dialogues

    def dialogues(self, split: str) -> Iterator[Turns]:
        """The dialogues of a split, from its first turn to the answer."""
        return (row.turns for row in self.examples(split))

    def train_texts(self) -> Iterable[str]:
        return map(written, self.dialogues("train"))

    def by_template(self, turns: Turns) -> bool:
        """Whether a dialogue is a chat that the tokenizer's own template writes."""
        return bool(header(turns[0][0])) and self.tokenizer.chat_template is not None

    def framed(self, rows: Iterable[Turns]) -> tuple[Ragged, Ragged]:
        """The ids of each dialogue, and for each id GIVEN, TAUGHT or LATER.

        A chat is as the tokenizer's template has it, if there is one. Others stand between the
        start token (unless task.prompt_start is False) and the end token, which is taught too."""
        rows = list(rows)
        plain = self._plain([turns for turns in rows if not self.by_template(turns)])
        both = [self._chat(turns) if self.by_template(turns) else next(plain) for turns in rows]
        return tuple(Ragged.from_lists([some[i] for some in both]) for i in range(2))

    def _plain(self, rows: list[Turns]) -> Iterator[tuple[list[int], list[int]]]:
        """Each dialogue is encoded as one text; a token across the border of two turns is the later
        one's."""
        every = [list(pieces_of(turns)) for turns in rows]
        parts = [
            "".join(piece for piece, _ in pieces[:n])
            for pieces in every
            for n in range(1, len(pieces) + 1)
        ]
        encoded = iter(self.tokenizer.encode_batch(parts))
        first = [self.start_id] if self.config.prompt_start else []
        for pieces in every:
            heads = [[], *(next(encoded) for _ in pieces)]
            borders = [common(before, heads[-1]) for before in heads[:-1]]
            kinds = _kinds(len(heads[-1]), borders, [taught for _, taught in pieces])
            yield (
                [*first, *heads[-1], self.tokenizer.eos_id],
                [*[GIVEN] * len(first), *kinds, TAUGHT],
            )

    def _chat(self, turns: Turns) -> tuple[list[int], list[int]]:
        """An answer's tokens are those that the template writes after inviting it."""
        messages = messages_of(turns)
        whole, borders, taught = self.chat.ids(messages, answer=False), [0], [False]
        for n, (role, _) in enumerate(turns):
            if role in ANSWERS:
                invited, answered = messages[:n], messages[: n + 1]
                borders.append(common(self.chat.ids(invited), whole))
                borders.append(common(self.chat.ids(answered, answer=False), whole))
                taught += [True, False]
        return whole, _kinds(len(whole), borders, taught)

    # Answers that the model writes.

    def prompt_of(self, row: Instruction) -> list[int]:
        """The ids after which the model writes the last answer of a row."""
        if self.by_template(row.turns):
            return self.chat.ids(messages_of(row.turns[:-1]))
        return self.prompt_ids(written(row.turns[:-1]) + header(row.turns[-1][0]))

    def write(
        self, params: Params, rows: Sequence[Instruction], place: Place, samples: int, seed: int
    ) -> list[tuple[list[int], list[Generated], list[str]]]:
        """For each row the ids of its prompt, `samples` answers, and their texts."""
        prompts = [self.prompt_of(row) for row in rows]
        generator = self.generator(place)
        generator.shrinks = True  # an answer may be as long as the context has room
        found = generator(params, prompts, samples, seed, stops=self.stops)
        return [
            (ids, some, [self.text_of(one, ids) for one in some])
            for ids, some in zip(prompts, found, strict=True)
        ]

    def asked(self, split: str) -> list[Instruction]:
        """The first `task.score_examples` rows of a split, without those of too long a prompt."""
        rows, most = (
            self.examples(split)[: self.config.score_examples],
            self.model_config.max_length,
        )
        return [row for row in rows if len(self.prompt_of(row)) < most]

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """For a trained model: the share of held-out prompts whose answer is the expected one, of
        all and of each kind of prompt."""
        rows = self.asked(split) if final else []
        if not rows:
            return Scores()
        wrote = [texts[0] for _, _, texts in self.write(params, rows, place, 1, 0)]
        wanted = [row.turns[-1][1] for row in rows]
        right = [a.strip() == b.strip() for a, b in zip(wrote, wanted, strict=True)]
        asked = [written(row.turns[:-1]) for row in rows]
        table = list(zip(asked, wrote, wanted, strict=True))[: self.config.samples]
        found = {"exact": float(np.mean(right))}
        for kind in sorted({*(names := [self.kind_of(prompt) for prompt in asked])} - {""}):
            own = [yes for yes, name in zip(right, names, strict=True) if name == kind]
            found[f"exact_{kind}"] = float(np.mean(own))
        return Scores(found, table)

    def kind_of(self, prompt: str) -> str:
        """What `task.kinds` matches in a prompt, as a name; "" for nothing."""
        match = re.search(self.config.kinds, prompt)
        return re.sub(r"\W+", "_", match[0].strip().lower()) if match else ""

    # Parts of batches and losses.

    def states(self, params: Params, batch: Batch, dropout_key: Any) -> Float[Array, "b t d"]:
        """The model's states of a batch's `tokens`, within `segments`, and with its `prefix`."""
        more = {"prefix": batch["prefix"]} if self.model.reads_prefix else {}
        inputs = batch["tokens"], dropout_key, batch["segments"]
        return self.model.apply({"params": params}, *inputs, **more, method="states")

    def log_probs(self, params: Params, states: Array, targets: Array) -> Float[Array, "b t"]:
        """The log-probability of each target, by the states of the tokens before."""
        variables = {"params": params}
        scores = self.model.apply(variables, states, targets, method="logits")
        return -cross_entropy(scores, targets)

    def details(self) -> list[str]:
        plan = self.describe_plan()  # which encodes the training set
        left = f"; longer than a row, left out: {self.left_out:,}" if self.left_out else ""
        return [f"vocabulary: {self.tokenizer.vocab_size:,} pieces", plan + left]


def messages_of(turns: Turns) -> list[dict[str, str]]:
    """A chat in the form that templates take."""
    return [{"role": role, "content": content} for role, content in turns]


def _kinds(length: int, borders: Sequence[int], taught: Sequence[bool]) -> list[int]:
    """What each of `length` ids is, by where the parts of a dialogue begin and which are taught."""
    kinds, said = np.full(length, GIVEN), False
    for border, now in zip(borders, taught, strict=True):
        said = said or now
        kinds[border:] = TAUGHT if now else LATER if said else GIVEN
    return kinds.tolist()


def common(head: Sequence[int], whole: Sequence[int]) -> int:
    """How many ids two sequences begin with in common."""
    same = (n for n, (a, b) in enumerate(zip(head, whole, strict=False)) if a != b)
    return next(same, min(len(head), len(whole)))


def with_head(params: Params, width: int) -> Params:
    """The parameters with a head of zeros that makes one number of a state."""
    return {**params, HEAD: {"kernel": jnp.zeros((width, 1)), "bias": jnp.zeros(1)}}


def head(params: Params, states: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
    """The head's number for each state, in float32."""
    found = states.astype(jnp.float32) @ params[HEAD]["kernel"] + params[HEAD]["bias"]
    return found[..., 0]
