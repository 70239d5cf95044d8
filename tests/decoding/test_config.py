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
        ({"alpha": float("nan")}, "decode.alpha = nan must be from -10"),
        ({"alpha": 1e9}, "decode.alpha = 1000000000.0 must be from -10 to 10"),
        ({"max_new_tokens": -1}, "decode.max_new_tokens = -1 must be at least 0"),
        ({"min_new_tokens": -1}, "decode.min_new_tokens = -1 must be at least 0"),
        ({"banned_tokens": (3, -2)}, "decode.banned_tokens = -2 must be at least 0"),
        ({"first_token": -1}, "decode.first_token = -1 must be at least 0"),
        ({"temperature": -0.5}, "decode.temperature = -0.5 must be at least 0"),
        ({"temperature": float("nan")}, "decode.temperature = nan"),
        ({"top_k": -1}, "decode.top_k = -1 must be at least 0"),
        ({"top_p": 1.5}, "decode.top_p = 1.5 must be from 0 to 1"),
        ({"repetition_penalty": 0.0}, "decode.repetition_penalty = 0 divides by nothing: 1 is"),
        ({"repetition_penalty": float("nan")}, "decode.repetition_penalty = nan"),
        ({"temperature": 1.0, "beam_size": 2}, "decode.temperature = 1.0, .* searches: set one"),
        ({"top_k": 3, "beam_size": 2}, "decode.top_k = 3 and .* are for sampling"),
        ({"top_p": 0.5, "beam_size": 2}, "decode.top_p = 0.5 are for sampling"),
        ({"stop": ("a", "")}, "decode.stop holds an empty string"),
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
