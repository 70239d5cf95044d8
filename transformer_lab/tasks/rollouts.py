"""What PPO and GRPO share: the model answers prompts and learns from its answers' rewards."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.data.batching import RowPlan
from transformer_lab.data.dialogues import Instruction
from transformer_lab.decoding.batch import fill, to_host
from transformer_lab.errors import LabError, at_least, known, within
from transformer_lab.kinds import kind, kinds
from transformer_lab.ops.losses import Pair
from transformer_lab.tasks.answers import Answering, AnswersConfig, written
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores
from transformer_lab.tasks.building import Shapes, shapes_of
from transformer_lab.tasks.pairs import from_file, to_file

REWARDS = "transformer_lab.text.rewards"
ROLLOUTS = "rollouts.npz"


@dataclass(frozen=True)
class RolloutsConfig(AnswersConfig):
    """Settings of learning from rewards. A batch has batch.rows answers."""

    reward: str = "exact"  # exact | brackets | chrf: a file of text.rewards
    group: int = 1  # answers to each prompt
    passes: int = 1  # steps that train on the same answers
    clip: float = 0.2  # how far a token's probability may move from that at the drawing
    kl: float = 0.05  # how dear it is to move away from the start of the run; 0: free

    def __post_init__(self):
        super().__post_init__()
        known("task.reward = ", self.reward, kinds(REWARDS, "def reward"))
        at_least(self, "task", 1, "group", "passes")
        at_least(self, "task", 0, "kl")
        within("task.clip", self.clip, 1e-6, 1)


class _Repeated(RowPlan):
    """A plan in which each batch comes `passes` times in a row."""

    def __init__(self, passes: int, count: int, rows: int, seed: int):
        self.passes = passes
        super().__init__(f"prompts {passes}", np.ones(count, np.int64), 1, rows, seed, None)

    def __getitem__(self, step: int) -> tuple[int, np.ndarray]:
        return super().__getitem__(step // self.passes)


class Rollouts(Answering):
    """A language model that is trained on its own answers.

    A batch holds `tokens`, `targets` (int32 [rows, length]), `mask` (True at the answer's tokens
    and its end token), `segments` (1, or 0 at padding), the reward of each row, and, at each
    target, `old`, its log-probability when it was drawn, `reference`, that at the start of the run,
    and `advantages`. A reward is 0 where the answer did not end within decode.max_new_tokens.
    """

    TRAINED = ("loss", "reward", "kl", "clipped", "answer_tokens")
    COLUMNS: tuple[str, ...] = ("old", "reference", "advantages")

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        rows, group, decode = (
            self.sections["batch"].rows,
            self.config.group,
            self.sections["decode"],
        )
        if rows % group:
            raise LabError(f"batch.rows = {rows} is no multiple of task.group = {group}")
        if decode.temperature != 1 or decode.top_k or decode.top_p not in (0, 1):
            raise LabError(
                "answers are drawn from the model's own distribution: set decode.temperature = 1 "
                "and neither top_k nor top_p"
            )
        if not 0 < decode.max_new_tokens < self.sections["batch"].length:
            raise LabError(
                f"decode.max_new_tokens = {decode.max_new_tokens} must be at least 1 and below "
                f"batch.length = {self.sections['batch'].length}"
            )
        stored = (self.assets_given or {}).get(ROLLOUTS)
        self._drawn: HostBatch = from_file(stored) if stored else {}
        self._reference: Params = None

    # The start of the run.

    @property
    def keeps_start(self) -> bool:
        return self.config.kl > 0

    def begin(self, params: Params, place: Place) -> None:
        """Keeps a copy of the parameters, the reference, as a training step overwrites its own."""
        if self.keeps_start:
            self._reference = jax.tree.map(jnp.copy, params)

    def assets(self) -> dict[str, bytes]:
        stored = {ROLLOUTS: to_file(self._drawn)} if self.config.passes > 1 and self._drawn else {}
        return super().assets() | stored

    # Prompts.

    @cached_property
    def prompts(self) -> list[Instruction]:
        """The training rows whose prompt leaves room for an answer."""
        room = self.sections["batch"].length + 1 - self.sections["decode"].max_new_tokens
        return [row for row in self.examples("train") if len(self.prompt_of(row)) <= room]

    @cached_property
    def train_plan(self) -> RowPlan:
        rows = self.sections["batch"].rows // self.config.group
        return _Repeated(self.config.passes, len(self.prompts), rows, self.seed)

    @property
    def load_train(self) -> Callable[..., HostBatch]:
        return lambda ids, shape: {"prompts": ids}

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        """None: answers have to be drawn to be judged, see `score`."""
        return iter(())

    def abstract_batch(self) -> Shapes:
        rows, length = self.sections["batch"].rows, self.sections["batch"].length
        names = {"tokens": np.int32, "targets": np.int32, "mask": bool, "segments": np.int32}
        names |= {"prefix": bool} if self.model.reads_prefix else {}
        names |= dict.fromkeys(self.COLUMNS, np.float32)
        return shapes_of((rows, length), **names) | shapes_of((rows,), reward=np.float32)

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        real = batch["segments"] > 0
        return {"examples": int(real[:, 0].sum()), "tokens": int(real.sum())}

    # Answers and their rewards.

    def complete(
        self, batch: HostBatch, step: int, params: Callable[[], Params], place: Place
    ) -> HostBatch:
        """Draws answers to the batch's prompts in the first of `passes` steps, and gives the same
        batch in the others, of which a checkpoint between them holds a copy."""
        if step % self.config.passes == 0:
            rows = [self.prompts[i] for i in batch["prompts"] if i >= 0]
            self._drawn = self.roll_out(params(), rows, step, place)
        return self._drawn

    def roll_out(
        self, params: Params, rows: list[Instruction], step: int, place: Place
    ) -> HostBatch:
        """The batch of a step: answers, what they are worth, and how likely their tokens are."""
        seed = int(np.random.default_rng((self.seed, step)).integers(2**32))
        wrote = self.write(params, rows, place, self.config.group, seed)
        batch = self.laid(wrote)
        given = [self.rewards(row, *some) for row, (_, *some) in zip(rows, wrote, strict=True)]
        rewards = np.zeros(len(batch["tokens"]), np.float32)
        rewards[: len(given) * self.config.group] = np.ravel(given)
        batch["reward"] = rewards
        here = place({name: x for name, x in batch.items() if name != "reward"})
        found = {"old": np.zeros_like(batch["mask"], np.float32)}
        found |= to_host(self._measured(params, here))
        found["reference"] = found["old"]
        if self._reference is not None:
            found["reference"] = to_host(self._measured(self._reference, here))["old"]
        return batch | {name: np.asarray(x) for name, x in self.worth(batch, found).items()}

    def laid(self, wrote: list) -> HostBatch:
        """The drawn texts in rows, an answer's end token with it; the rest of the rows is empty."""
        rows, length = self.sections["batch"].rows, self.sections["batch"].length
        texts, starts = [], []
        for prompt, answers, _ in wrote:
            for one in answers:
                end = [self.tokenizer.eos_id] * (len(one.log_probs) > len(one.ids))
                texts.append([*prompt, *one.ids, *end])
                starts.append(len(prompt))
        ids, real = fill(texts, rows, length + 1)
        first = np.pad(np.asarray(starts), (0, rows - len(starts)), constant_values=length + 1)
        answered = real & (np.arange(length + 1) >= first[:, None])
        batch = {
            "tokens": np.where(real[:, 1:], ids[:, :-1], 0),
            "targets": ids[:, 1:],
            "mask": answered[:, 1:],
            "segments": real[:, 1:].astype(np.int32),
        }
        if self.model.reads_prefix:
            batch["prefix"] = real[:, 1:] & ~answered[:, :-1]
        return batch

    def rewards(self, row: Instruction, found: list, texts: list[str]) -> list[float]:
        """The rewards of the answers to a row's prompt."""
        judge = kind(REWARDS, "def reward", "task.reward", self.config.reward).reward
        asked, wanted = written(row.turns[:-1]), row.turns[-1][1]
        return [
            judge(asked, text, wanted) if one.ended else 0.0
            for one, text in zip(found, texts, strict=True)
        ]

    @cached_property
    def _measured(self) -> Callable[[Params, Batch], Batch]:
        return jax.jit(self.measured)

    def measured(self, params: Params, batch: Batch) -> Batch:
        """The log-probabilities `old` [rows, length] of a batch's targets, without dropout, as they
        were when the answers were drawn."""
        states = self.states(params, batch, None)
        return {"old": self.log_probs(params, states, batch["targets"])}

    def worth(self, batch: HostBatch, found: Batch) -> Batch:
        """The columns of the batch, from its rewards and what was `found` of its tokens."""
        raise TypeError(f"{type(self).__name__} has no `worth`")

    def told(self, batch: Batch, log_probs: Any) -> dict[str, Pair]:
        """What a step reports of its answers."""
        mask, rows = batch["mask"], batch["mask"].any(axis=1)
        count, tokens = rows.sum(dtype=jnp.float32), mask.sum(dtype=jnp.float32)
        ratio = jnp.exp(log_probs - batch["old"])
        moved = mask & (abs(ratio - 1) > self.config.clip)
        kl = jnp.where(mask, batch["old"] - batch["reference"], 0).sum()
        return {
            "reward": (jnp.where(rows, batch["reward"], 0).sum(), count),
            "kl": (kl, count),  # nats an answer, by the answers drawn
            "clipped": (moved.sum(dtype=jnp.float32), tokens),
            "answer_tokens": (tokens, count),
        }

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """The mean reward of one answer to each of the first held-out prompts, drawn in the same
        way each time, and whether it is the expected one."""
        rows = self.asked(split)
        if not rows:
            return Scores()
        wrote = self.write(params, rows, place, 1, 0)
        rewards = [self.rewards(row, *some) for row, (_, *some) in zip(rows, wrote, strict=True)]
        wanted = [row.turns[-1][1].strip() for row in rows]
        said = [texts[0] for _, _, texts in wrote]
        exact = np.mean([a.strip() == b for a, b in zip(said, wanted, strict=True)])
        asked = [written(row.turns[:-1]) for row in rows]
        table = list(zip(asked, said, wanted, strict=True))[: self.shown(final)]
        return Scores({"reward": float(np.mean(rewards)), "exact": float(exact)}, table)

    def describe_plan(self) -> str:
        return f"{len(self.prompts):,} prompts, {self.config.group} answers to each"
