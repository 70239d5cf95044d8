"""Settings that change which tokens may come, in greedy search, sampling and beams alike."""

from pathlib import Path

import numpy as np
import pytest

from tests.decoding.toy import EOS
from tests.decoding.toy_decoder import CONFIG, NEW, PROMPTS, Model, end_token
from transformer_lab import pretrained
from transformer_lab.decoding import DecodeConfig
from transformer_lab.decoding.batch import SequenceDecoder
from transformer_lab.decoding.generate import Generator
from transformer_lab.errors import LabError
from transformer_lab.models.decoder import build

LLAMA = Path(__file__).parents[1] / "fixtures" / "decoders" / "llama"
GREEDY, BEAM = [71, 37, 24, 23, 38, 83, 83, 65], [71, 37, 65, 32]


@pytest.fixture(scope="module")
def llama():
    return pretrained.load(LLAMA)


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.mark.each_run("settings0-ids0-None", "settings3-ids3-None", "settings5-ids5--11.8996")
@pytest.mark.parametrize(
    ("settings", "ids", "score"),
    [  # The reference implementation's own generations after 1 8 6 8, with its name of each.
        ({}, GREEDY, None),
        ({"repetition_penalty": 1.8}, [*GREEDY[:6], 26, 65], None),
        ({"repetition_penalty": 0.6}, [71, 37, 24, 23, 71, 24, 5, 71], None),
        ({"no_repeat_ngram": 1}, [*GREEDY[:6], 26, 65], None),
        ({"beam_size": 3}, BEAM, -7.9053),
        ({"beam_size": 3, "min_new_tokens": 6}, [*BEAM, 16, 53, 32, 23], -11.8996),
        ({"beam_size": 3, "repetition_penalty": 0.6}, [*BEAM, 37, 65, 5, 53], -10.8404),
    ],
)
def test_generations_under_each_setting_are_the_references(settings, ids, score, llama):
    rest = {"max_new_tokens": 8, "alpha": 0.0, "early_stopping": "heuristic"}
    run = lambda **more: Generator(  # noqa: E731
        build(llama.config), DecodeConfig(**rest, **settings, **more), eos_id=2
    )(llama.params, [[1, 8, 6, 8], [5]])
    (found,) = run()[0]
    assert found.ids == ids
    if score is not None:
        assert sum(found.log_probs) == pytest.approx(score, abs=1e-4)
    else:  # the likeliest of one token alone is drawn always
        assert run(temperature=1.0, top_k=1)[0][0].ids == ids


@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "top_k": 1}])
def test_first_token_forced_end_and_renormalised_probabilities_hold_for_prompts(sampled, model):
    params, new = end_token(model.params, -9.0), 4
    settings = {"first_token": 7, "force_eos": True, "renormalize": True, "banned_tokens": (0, 3)}
    found = model.generator(max_new_tokens=new, **settings, **sampled)(params, PROMPTS)
    for prompt, (one,) in zip(PROMPTS, found, strict=True):
        ids, scores = [*prompt, 7], [0.0]
        while len(scores) < new - 1:
            last = model.log_probs(params, ids, prompt)[-1].astype(np.float64)
            last[[0, 3]] = -np.inf
            last -= np.log(np.exp(last).sum())
            ids.append(int(last.argmax()))
            scores.append(last.max())
        assert (one.ids, one.ended) == (ids[len(prompt) :], True)
        np.testing.assert_allclose(one.log_probs, [*scores, 0.0], atol=1e-4)


def test_sampled_texts_neither_end_early_nor_repeat_what_the_prompt_holds(model):
    params = end_token(model.params, 3.0)
    settings = {"temperature": 1.5, "min_new_tokens": 4, "no_repeat_ngram": 2}
    found = model.generator(**settings)(params, PROMPTS, samples=8)
    lengths = set()
    for prompt, samples in zip(PROMPTS, found, strict=True):
        for one in samples:
            ids = [*prompt, *one.ids]
            pairs = list(zip(ids[len(prompt) - 1 :], ids[len(prompt) :], strict=False))
            before = set(zip(prompt, prompt[1:], strict=False))
            assert len(set(pairs)) == len(pairs) and not before & set(pairs)
            lengths.add(len(one.ids))
    assert 4 <= min(lengths) < max(lengths) <= NEW


def test_what_a_source_cannot_be_decoded_with_is_refused_by_name(model):
    with pytest.raises(LabError, match="decode.stop is for continuing prompts"):
        SequenceDecoder(model.model, DecodeConfig(stop=("x",)), eos_id=EOS, pad_id=0, start_id=2)


def test_a_first_token_outside_the_vocabulary_is_refused(model):
    with pytest.raises(
        LabError, match=f"token 99 is outside the model's vocabulary of {CONFIG.vocab_size}"
    ):
        model.generator(first_token=99)
