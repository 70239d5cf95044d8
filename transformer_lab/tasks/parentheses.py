"""Whether parentheses are balanced: classification of made-up texts, scored length by length."""

from functools import cached_property

import numpy as np

from transformer_lab import text
from transformer_lab.data import parentheses
from transformer_lab.data.batching import BatchConfig
from transformer_lab.data.splits import Splits
from transformer_lab.tasks.base import Params, Place, Scores
from transformer_lab.tasks.classification import Classification, ClassificationConfig

SECTIONS = {
    "task": ClassificationConfig,
    "data": parentheses.ParenthesesConfig,
    "batch": BatchConfig,
    "tokenizer": text.TokenizerConfig,
}


class Parentheses(Classification):
    """The same with `accuracy_N` of the finished model on texts of N symbols, and baselines."""

    @cached_property
    def data(self) -> Splits:
        return parentheses.load(self.sections["data"])

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        found = super().score(params, split, place, final)
        if not final:
            return found
        values = {**found.values, **parentheses.baselines(self.data.train, self.data.test)}
        config, trained = self.sections["data"], {row.text for row in self.data.train}
        for length in config.other_lengths:
            rows = parentheses.of_length(config, length, trained)
            fields = self.encode_texts([row.text for row in rows], [None] * len(rows))
            gold = self._targets(f"length {length}", rows)
            logits = np.stack(self.outputs(params, fields, {"label": gold}, place))
            values[f"accuracy_{length}"] = float((logits.argmax(axis=-1) == gold).mean())
        return Scores(values, found.samples, found.notes)


build = Parentheses
