"""Whether parentheses are balanced: classification of made-up texts, scored length by length."""

from dataclasses import replace

import numpy as np

from transformer_lab.data import parentheses
from transformer_lab.tasks import classification
from transformer_lab.tasks.base import Params, Place, Scores

SECTIONS = classification.SECTIONS | {"data": parentheses.ParenthesesConfig}


class Parentheses(classification.Classification):
    """Classification with `accuracy_N` of the finished model on N symbols, and baselines.

    "++--" is balanced, the class 0, and "+--+" is not:

        tokens       [[2, 4, 4, 5, 5, 1, 0, 0], [2, 4, 5, 5, 4, 1, 0, 0]]
        tokens_mask  [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0]]
        label        [0, 1]
    """

    load_data = parentheses.load

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        found = super().score(params, split, place, final)
        if not final:
            return found
        values = {**found.values, **parentheses.baselines(self.data.train, self.data.test)}
        config, trained = self.sections["data"], {row.text for row in self.data.train}
        for length in config.other_lengths:
            rows = parentheses.of_length(config, length, trained)
            fields = self.encode_texts([row.text for row in rows], [None] * len(rows))
            gold = self.targets(f"length {length}", rows)
            logits = np.stack(self.outputs(params, fields, {"label": gold}, place))
            values[f"accuracy_{length}"] = float((logits.argmax(axis=-1) == gold).mean())
        return replace(found, values=values)


build = Parentheses
