"""Dependency trees: for each word its head and its relation, by biaffine scores (Dozat 2017)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from transformer_lab.data import labelled
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.splits import Splits
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum, token_scores
from transformer_lab.tasks.base import Batch, Params, Place, Scores
from transformer_lab.tasks.bucketed import Columns, Fields
from transformer_lab.tasks.encoder_task import TEXTS, WordTask, ragged
from transformer_lab.tasks.labels import Labelled
from transformer_lab.tasks.spanning_tree import spanning_tree

Tree = tuple[Sequence[int], Sequence[str]]  # each word's head, 0 for the root, and its relation


@dataclass(frozen=True)
class ParsingConfig:
    """Settings of dependency parsing, the config section `task`."""

    samples: int = 8  # sentences shown at the end


SECTIONS = {"task": ParsingConfig, **TEXTS}


class DependencyParsing(Labelled, WordTask):
    """Predicts for each word the word that it depends on, and in what relation.

    A batch also holds `label` [rows, length]: 1 + the relation at a word's first piece, else 0; and
    there `head`: the position of its head's first piece, or 0, the start token, for the root. "ann
    ran" with the heads 2 and 0, and "ran", where root is relation 1:

        tokens       [[2, 5, 4, 1, 0, 0], [2, 4, 1, 0, 0, 0]]
        tokens_mask  [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]]
        head         [[0, 2, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
        label        [[0, 1, 2, 0, 0, 0], [0, 2, 0, 0, 0, 0]]
    """

    HEAD, PER_TOKEN = "arcs", {"head": np.int32, "label": np.int32}
    COUNTED = "sentences"

    @staticmethod
    def load_data(config: labelled.LabelledConfig) -> Splits:
        """The splits of a source of trees. Raises: LabError for another one."""
        splits = labelled.load_labelled(config)
        if not isinstance(splits.train[0], labelled.Parsed):
            raise LabError(f'config.data.source = "{config.source}" gives no trees: give CoNLL-U')
        return splits

    def train_labels(self) -> Iterator[str]:
        return (tag for row in self.data.train for tag in row.tags)

    def train_texts(self) -> Iterator[str]:
        return (" ".join(row.words) for row in self.data.train)

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        number = {label: i for i, label in enumerate(self.labels)}
        tokens, heads, labels = [], [], []
        for row in self.examples(split):
            ids, firsts = self.encode_words(row.words)
            over, marks, at = [0] * len(ids), [0] * len(ids), [0, *firsts]
            for first, head, label in zip(firsts, row.heads, row.tags, strict=True):
                # A relation that the checkpoint does not know cannot be predicted: an error.
                over[first], marks[first] = at[head], 1 + number.get(label, len(number))
            tokens.append(ids)
            heads.append(over)
            labels.append(marks)
        columns = {"head": Ragged.from_lists(heads), "label": Ragged.from_lists(labels)}
        return ragged(tokens), columns

    def apply(self, params: Params, batch: Batch, dropout_key=None, **more) -> dict:
        """The model's outputs; its logits are of relations to the heads that the batch holds."""
        return super().apply(params, batch, dropout_key, places=batch.get("head"), **more)

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The cross-entropy of the words' heads, among first pieces and the root, and of relations
        given the right heads; and the shares of either that are right, before trees are made."""
        head, label, words = batch["head"], batch["label"] - 1, batch["label"] > 0
        out = self.apply(params, batch, dropout_key)
        possible = words.at[:, 0].set(True)[:, None]  # [rows, 1, length]
        arcs = token_scores(jnp.where(possible, out["arcs"], -1e9), head)
        labels = token_scores(out["logits"], label)
        found = {
            "loss": cross_entropy(arcs, head) + cross_entropy(labels, label),
            "head_accuracy": (arcs.best == head).astype(jnp.float32),
            "label_accuracy": (labels.best == label).astype(jnp.float32),
        }
        return {name: masked_sum(values, words) for name, values in found.items()}

    def parse(
        self, params: Params, tokens: Fields, firsts: Sequence[Sequence[int]], place: Place
    ) -> list[Tree]:
        """The best tree of each sentence, whose words begin at the positions `firsts`; then each
        word's relation to its head in that tree."""
        nothing = Ragged.from_lists([[0] * len(ids) for ids in tokens["tokens"]])
        arcs = self.outputs(params, tokens, {"head": nothing}, place, "arcs")
        trees, columns = [], []
        for values, at in zip(arcs, firsts, strict=True):
            places = np.asarray([0, *at])
            chances = values[places[1:]][:, places].astype(np.float64)
            chances -= np.logaddexp.reduce(chances, axis=1, keepdims=True)
            trees.append(spanning_tree(chances) if len(at) else places[1:])
            column = np.zeros(len(values), np.int32)
            column[places[1:]] = places[trees[-1]]
            columns.append(column.tolist())
        logits = self.outputs(params, tokens, {"head": Ragged.from_lists(columns)}, place)
        best = (v[list(at)].argmax(axis=-1) for v, at in zip(logits, firsts, strict=True))
        names = ([self.labels[i] for i in row] for row in best)
        return [(tree.tolist(), row) for tree, row in zip(trees, names, strict=True)]

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Attachment scores without sentences that are too long, punctuation counted as words, and
        those of a tree in which each word depends on the next, in the most frequent relation."""
        rows = self.examples(split)
        if not rows:
            return Scores()
        tokens, columns, fit = self.fitting(split)
        firsts = [np.flatnonzero(marks) for marks in columns["label"]]
        found = self.parse(params, tokens, firsts, place)
        rows = [row for row, fits in zip(rows, fit, strict=True) if fits]
        (most, _), *_ = Counter(self.train_labels()).most_common(1)
        plain = [([*range(2, len(row.words) + 1), 0], [most] * len(row.words)) for row in rows]
        gold = [(row.heads, row.tags) for row in rows]
        values = attachment(gold, found) | {
            f"next_word_{name}": score for name, score in attachment(gold, plain).items()
        }
        samples = [
            (" ".join(row.words), *(" ".join(map("{}:{}".format, *t)) for t in (guess, tree)))
            for row, guess, tree in zip(rows[: self.shown(final)], found, gold, strict=False)
        ]
        return Scores({**values, "num_examples": float(len(rows))}, samples)

    def predict(self, params: Params, texts: Sequence[str], place: Place) -> list[dict]:
        """The words of each text, divided at white space, and their heads and relations."""
        encoded = self.encode_lines(texts)
        tokens = ragged([ids for ids, _ in encoded])
        trees = self.parse(params, tokens, [firsts for _, firsts in encoded], place)
        return [
            {"text": line, "words": line.split(), "heads": heads, "labels": labels}
            for line, (heads, labels) in zip(texts, trees, strict=True)
        ]


def attachment(gold: Sequence[Tree], found: Sequence[Tree]) -> dict[str, float]:
    """Shares of all words: `uas` with the right head, `las` with the right relation too; and the
    share of sentences whose heads and relations are all right, `whole`."""
    pairs = list(zip(gold, found, strict=True))
    heads = [np.equal(tree[0], guess[0]) for tree, guess in pairs]
    labels = [np.equal(np.asarray(tree[1]), np.asarray(guess[1])) for tree, guess in pairs]
    both = [right & same for right, same in zip(heads, labels, strict=True)]
    shares = np.concatenate(heads), np.concatenate(both), [right.all() for right in both]
    return dict(zip(("uas", "las", "whole"), map(float, map(np.mean, shares)), strict=True))


build = DependencyParsing
