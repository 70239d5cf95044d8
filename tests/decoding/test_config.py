"""Decoding settings that cannot be."""

import numpy as np
import pytest

from transformer_lab.decoding import DecodeConfig
from transformer_lab.errors import LabError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "decode.beam_size = 0 must be at least 1"),
        ({"batch_size": 0}, "decode.batch_size = 0 must be at least 1"),
        ({"beam_size": 2, "n_best": 3}, "n_best = 3 needs decode.beam_size >= 3, it is 2"),
        ({"length_penalty": "gnnt"}, 'did you mean "gnmt"'),
        ({"early_stopping": "never"}, 'early_stopping = "never" is unknown'),
        ({"alpha": float("nan")}, "decode.alpha = nan is not in"),
        ({"alpha": 1e9}, r"is not in \[-10, 10\]"),
        ({"max_new_tokens": -1}, "decode.max_new_tokens = -1 must be at least 1, or 0"),
        ({"banned_tokens": (3, -2)}, "negative"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(LabError, match=message) as raised:
        DecodeConfig(**settings)
    assert "\n" not in str(raised.value)


def test_penalties_follow_the_papers():
    gnmt = DecodeConfig(length_penalty="gnmt", alpha=0.6).penalties(7)
    np.testing.assert_allclose(gnmt[[1, 7]], [1.0, 2.0**0.6], rtol=1e-6)
    power = DecodeConfig(length_penalty="power", alpha=-2.0).penalties(4)
    np.testing.assert_allclose(power[1:], [1, 1 / 4, 1 / 9, 1 / 16], rtol=1e-6)
