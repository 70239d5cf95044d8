"""The chrF of a translation beside the expected one (Popovic 2015), divided by 100."""

from sacrebleu import CHRF

_CHRF = CHRF()


def reward(prompt: str, answer: str, expected: str) -> float:
    return _CHRF.sentence_score(answer, [expected]).score / 100
