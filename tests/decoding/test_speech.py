"""Times in their order, windows that follow them, and texts that are decoded again."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.processors import IMPOSSIBLE, prepare
from transformer_lab.decoding.speech import Marks, SpeechConfig, Transcriber, cut
from transformer_lab.errors import LabError
from transformer_lab.ops.spectrograms import HOP, RATE, log_mel

# A vocabulary of the texts 0 to 2, the end 3, the mark of no times 4, and the times 5 to 9.
TEXTS, END, NO_TIMES, ZERO, SIZE = (0, 1, 2), 3, 4, 5, 10
LIMIT = 2  # steps of the first time
allowed_next = jax.jit(
    lambda logits, said, i: (
        prepare(logits, DecodeConfig(zero_time=ZERO, latest_start=LIMIT), END, said, 2, i, False)[0]
        > IMPOSSIBLE
    )
)


# What may follow, by transformers 5.24.0's WhisperTimeStampLogitsProcessor on this vocabulary.
REFERENCE = {
    (): [5, 6, 7],
    (5,): [0, 1, 2, 3],
    (7,): [0, 1, 2, 3],
    (5, 1): [0, 1, 2, 3, 6, 7, 8, 9],
    (6, 1, 0): [0, 1, 2, 3, 7, 8, 9],
    (5, 1, 7): [3, 7, 8, 9],
    (7, 1, 7): [3, 7, 8, 9],
    (5, 1, 7, 7): [0, 1, 2, 3],
    (5, 1, 7, 8): [0, 1, 2, 3],
    (5, 1, 7, 8, 2): [0, 1, 2, 3, 9],
    (5, 1, 7, 8, 2, 8): [3, 8, 9],
    (5, 1, 9): [3, 9],
    (5, 1, 2, 8): [3, 8, 9],
    (6, 0, 6): [3, 6, 7, 8, 9],
}


def test_the_allowed_tokens_are_the_references():
    even = jnp.zeros((1, SIZE)).at[:, ZERO:].set(-9.0)  # no time is due
    for said, wanted in REFERENCE.items():
        row = jnp.array([[1, 9, *said, *[9] * (6 - len(said))]])  # behind two tokens of a prompt
        found = allowed_next(even, row, len(said))[0]
        assert np.flatnonzero(found).tolist() == wanted, said


def test_a_time_is_due_where_all_of_them_are_likelier_than_any_other_token():
    row = jnp.array([[1, 1, ZERO, 0, 0, 0, 0]])
    for level, due in ((0.6, True), (0.4, False)):  # four times and one text of weight 2
        weights = jnp.full((1, SIZE), 0.01).at[:, ZERO + 1 :].set(level).at[:, 1].set(2.0)
        found = np.flatnonzero(allowed_next(jnp.log(weights), row, 2)[0])
        assert (found.min() >= ZERO) == due and {*range(ZERO + 1, SIZE)} <= {*found.tolist()}


def test_tokens_that_may_not_come_first_may_come_later():
    config = DecodeConfig(first_banned_tokens=(0, END))
    said = jnp.array([[1, 2, 0, 0]])
    for i, banned in ((0, [0, END]), (1, [])):
        found = prepare(jnp.zeros((1, SIZE)), config, END, said, 1, i, False)[0]
        assert np.flatnonzero(found[0] == IMPOSSIBLE).tolist() == banned


def test_a_window_is_cut_at_its_times():
    zero, one, two, three = map(time, (0, 1, 2, 3))
    assert cut([zero, 1, one], ZERO, 30.0) == ([(0.0, 1.0, [zero, 1, one])], 0.0)
    pieces = [(0.0, 1.0, [zero, 1, one]), (2.0, 3.0, [two, 2, 0, three])]
    assert cut([zero, 1, one, two, 2, 0, three], ZERO, 30.0) == (pieces, 0.0)
    # The text behind the last pair has no end: the next window begins there.
    assert cut([zero, 1, one, two, 2], ZERO, 30.0) == (pieces[:1], 1.0)
    assert cut([zero, 1, one, one, 2, two, two], ZERO, 30.0)[1] == 2.0
    assert cut([one, 1, two], ZERO, 30.0) == ([(1.0, 2.0, [one, 1, two])], 0.0)
    assert cut([zero, 1, 2], ZERO, 4.5) == ([(0.0, 4.5, [zero, 1, 2])], 0.0)
    assert cut([], ZERO, 4.5) == ([(0.0, 4.5, [])], 0.0)
    assert cut([1, 2], None, 4.5) == ([(0.0, 4.5, [1, 2])], 0.0)


SECOND = 100  # frames of a window: one second, 50 steps of time
START, PREVIOUS, SILENCE = ZERO + 51, ZERO + 52, ZERO + 53
MARKS = Marks(START, PREVIOUS, SILENCE, NO_TIMES)
HUM = np.sin(2 * np.pi * 300 * np.arange(2 * RATE) / RATE).astype(np.float32)
LOUD = float(jax.jit(log_mel, static_argnums=1)(HUM[:RATE], 4)[10, 0])


class Scripted:
    """A model that says a script, which the loudness of the window's beginning chooses.

    Script k, of a hum of 10^-k, is what `scores` [scripts, tokens, vocabulary] has as logits.
    """

    config = SimpleNamespace(frames=SECOND, bins=4, max_length=32)

    def __init__(self, scores):
        self.scores = jnp.asarray(scores, jnp.float32)

    def apply(self, params, *inputs, method):
        if method == "init_cache":
            script = jnp.round((LOUD - inputs[0][:, 10, 0]) * 2).astype(jnp.int32)
            zero = jnp.zeros((), jnp.int32)
            return {"index": zero, "layers": {"script": script}}
        tokens, cache = inputs
        base = cache.get("base", tokens.shape[1] - 1)  # the place of the prompt's last token
        places = jnp.maximum(cache["index"] + jnp.arange(tokens.shape[1]) - base, 0)
        logits = self.scores[cache["layers"]["script"]][:, places]
        return logits, {**cache, "index": cache["index"] + tokens.shape[1], "base": jnp.array(base)}


class Sound:
    """Samples in memory."""

    def __init__(self, samples):
        self.samples = samples

    def take(self, start, count):
        return self.samples[start : start + count]


class Noted(Transcriber):
    """Keeps the prompts, without their padding."""

    def _batch(self, prompt, length):
        self.prompts = [*getattr(self, "prompts", []), list(prompt)]
        return super()._batch(prompt, length)


def time(seconds):
    return ZERO + round(seconds * 50)


def spoken(*tokens):
    """Logits of a script: each token nearly sure, then the end."""
    rows = [*tokens, *[END] * (14 - len(tokens))]
    return 20.0 * np.eye(SILENCE + 1)[rows]


def make(*scripts, config=None, marks=MARKS, beams=1, new=12, **more):
    banned = START, PREVIOUS, SILENCE
    decode = DecodeConfig(max_new_tokens=new, banned_tokens=banned, beam_size=beams)
    text_of = lambda ids: " ".join(f"w{i}" for i in ids)  # noqa: E731
    config = config or SpeechConfig()
    scripts = np.stack(scripts)
    return Noted(Scripted(scripts), decode, config, marks, eos_id=END, text_of=text_of, **more)


def test_windows_follow_the_times_and_the_text_before_is_part_of_the_prompt():
    quiet = np.zeros((14, SILENCE + 1))
    quiet[0, SILENCE] = 20.0  # no speech, and nothing else is probable
    scripts = [
        spoken(time(0), 1, time(0.4), time(0.4), 2),
        spoken(time(0.02), 2, 0, time(1.0)),
        quiet,
    ]
    scale = np.repeat([1.0, 0.1, 0.01], [round(0.4 * RATE), RATE, round(0.6 * RATE)])
    transcriber = make(*scripts)
    found = list(transcriber({}, Sound((HUM * scale).astype(np.float32))))
    assert [segment[:3] for segment in found] == [(0.0, 0.4, "w1"), (0.42, 1.4, "w2 w0")]
    assert all(segment.temperature == 0.0 and segment.log_prob > -1e-3 for segment in found)
    first, second = [time(0), 1, time(0.4)], [time(0.02), 2, 0, time(1.0)]
    prompts = [[START], [PREVIOUS, *first, START], [PREVIOUS, *first, *second, START]]
    assert transcriber.prompts == prompts
    alone = make(*scripts, config=SpeechConfig(with_previous=False))
    assert list(alone({}, Sound((HUM * scale).astype(np.float32)))) == found
    assert alone.prompts == [[START]] * 3


def tried(transcriber):
    """A window's text, and the mean log-probability of what each temperature wrote."""
    search, means = transcriber._search, []

    def noted(*args):
        found = search(*args)
        means.append(float(found.log_probs[0, 0] / found.lengths[0, 0]))
        return found

    transcriber._search = noted
    return window_of(transcriber), means


def window_of(transcriber, *before):
    """What is decoded for a second of the loudest hum."""
    return transcriber.window({}, transcriber.hear({}, HUM[:RATE]), *before)


def test_of_texts_that_are_all_improbable_the_likeliest_counts():
    flat = np.zeros((14, SILENCE + 1))
    window, means = tried(make(flat))
    assert len(means) == 6 and max(means) < -1 and window.silence < 0.1
    np.testing.assert_allclose(window.log_prob, max(means), rtol=1e-6)
    assert tried(make(flat)) == (window, means)
    assert tried(make(flat, seed=1))[1][1:] != means[1:]
    sure, means = tried(make(flat, config=SpeechConfig(least_log_prob=-99.0)))
    assert sure.temperature == 0.0 and len(means) == 1


def test_beams_find_the_longer_text_behind_a_less_likely_token():
    script = spoken(time(0), 1, 2, time(1.0))
    script[1, :] = 0.0
    script[1, [1, END]] = 20.0, 20.1  # the end is likelier, but a longer text scores better
    assert window_of(make(script)).ids == [time(0)]
    found = window_of(make(script, beams=3))
    assert found.ids == [time(0), 1, 2, time(1.0)] and found.temperature == 0.0


def test_a_text_that_repeats_itself_is_decoded_again():
    for count, searches in ((2, 1), (11, 6)):
        window, means = tried(make(spoken(time(0), *[1] * count)))
        assert len(means) == searches and window.ids[:3] == [time(0), 1, 1]


def test_a_prompt_holds_the_last_of_a_long_text_and_leaves_half_of_the_room():
    transcriber = make(spoken(time(0), 1, time(1.0)))
    assert (transcriber.new, transcriber.room) == (12, 18)  # of 32, with two marks
    window_of(transcriber, [0] * 5 + [2] * 18)
    assert transcriber.prompts == [[PREVIOUS, *[2] * 18, START]]
    assert [make(spoken(1), new=new).new for new in (0, 31)] == [16, 16]


def test_without_times_a_window_is_one_piece():
    transcriber = make(spoken(1, 2), spoken(0), config=SpeechConfig(times=False))
    scale = np.repeat([1.0, 0.1], [RATE, RATE // 2])
    found = list(transcriber({}, Sound((HUM[: len(scale)] * scale).astype(np.float32))))
    assert [segment[:3] for segment in found] == [(0.0, 1.0, "w1 w2"), (1.0, 1.5, "w0")]
    assert transcriber.prompts[0] == [START, NO_TIMES]


def test_a_language_is_the_likeliest_of_the_models_and_stands_in_the_prompt():
    script = spoken(time(0), 1, time(1.0))
    script[0, [30, 31]] = 2.0, 3.0
    tasks, languages = {"transcribe": 40, "translate": 41}, {"en": 30, "fr": 31, "de": 32}
    marks = MARKS._replace(tasks=tasks, languages=languages)
    transcriber = make(script, marks=marks, config=SpeechConfig(task="translate"))
    assert [segment.text for segment in transcriber({}, Sound(HUM[:RATE]))] == ["w1"]
    assert transcriber.prompts == [[START], [START, 31, 41]]
    with pytest.raises(LabError, match='language = "frr" is unknown.*"fr"'):
        make(script, marks=marks, config=SpeechConfig(language="frr"))
    with pytest.raises(LabError, match="does not translate"):
        make(script, config=SpeechConfig(task="translate"))


def test_a_file_of_less_than_a_frame_has_no_segments():
    assert list(make(spoken(time(0), 1, time(1.0)))({}, Sound(HUM[: HOP - 1]))) == []
