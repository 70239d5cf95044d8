"""Generation settings: the reference's own runs, and every setting that we cannot follow."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from transformer_lab import pretrained
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError
from transformer_lab.pretrained.generation import (
    NO_TOKEN,
    SpecialIds,
    read_generation,
    write_generation,
)
from transformer_lab.pretrained.hub import HubDirectory, read_directory
from transformer_lab.pretrained.running import RUNNERS

FIXTURE = Path(__file__).parents[1] / "fixtures" / "marian_relu"
USUAL = {"length_penalty": "power", "alpha": 1.0, "early_stopping": "heuristic"}
TOKENS = {"pad_token_id": 9, "eos_token_id": 0, "decoder_start_token_id": 9}


def read(generation=None, config=TOKENS, max_length=32, decoder_only=False, notes=None):
    """What the settings of a model of ten tokens mean."""
    directory = HubDirectory(Path("dir"), config, generation, {})
    return read_generation(directory, 10, max_length, decoder_only, notes)


def fixture_case(name):
    """The directory with one case's settings in generation_config.json, and what it generated."""
    found = read_directory(FIXTURE)
    case = json.loads((FIXTURE / "generation_cases.json").read_text())[name]
    return dataclasses.replace(found, generation=found.generation | case)


@pytest.mark.parametrize("name", ["beam3_nbest", "beam4_renormalized", "greedy_forced_eos"])
def test_generations_equal_the_reference_token_for_token(name):
    model = pretrained.load(FIXTURE)
    config = model.config
    decode, special = read_generation(fixture_case(name), config.vocab_size, config.max_length)
    with np.load(FIXTURE / "expected.npz") as file:
        runner = RUNNERS["encoder_decoder"]
        inputs = {key: file[key] for key in runner.inputs}
        tokens, scores = runner.generate(config, model.params, inputs, decode, special)
        np.testing.assert_array_equal(tokens, file[name])
        if f"{name}_scores" in file:
            np.testing.assert_allclose(scores, file[f"{name}_scores"], atol=1e-4)


def test_what_our_search_has_not_is_named_and_refuses_no_weights():
    notes = []
    decode, _ = read_generation(fixture_case("beam4_bad_words"), 61, 32, notes=notes)
    (note,) = notes
    assert "bad_words_ids = " in note and "generation does without" in note
    assert decode.beam_size == 4
    given = {
        "do_sample": True,
        "temperature": 0.5,
        "diversity_penalty": 1.5,
        "forced_eos_token_id": 3,
        "stop_strings": ["x"],
        "beam_width": 4,
        "sequence_bias": None,
    }
    notes = []
    decode, _ = read(given, notes=notes)
    assert decode == DecodeConfig(**USUAL, max_new_tokens=20)
    (note,) = notes
    assert note == (
        "dir/generation_config.json: not imported, generation does without: beam_width = 4, "
        'diversity_penalty = 1.5, do_sample = true, forced_eos_token_id = 3, stop_strings = ["x"]'
    )


def test_a_decoders_own_sampling_and_penalties_are_imported_and_written_back():
    given = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
        "min_new_tokens": 2,
        "max_new_tokens": 9,
        "stop_strings": ["Human:, Bot:", "\n\n"],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    notes = []
    decode, special = read(
        given | {"min_p": 0.1, "min_length": 5}, {}, decoder_only=True, notes=notes
    )
    assert decode == DecodeConfig(
        **USUAL, max_new_tokens=9, temperature=0.6, top_k=50, top_p=0.9, repetition_penalty=1.1,
        no_repeat_ngram=3, min_new_tokens=2, stop=("Human:, Bot:", "\n\n"),
    )  # fmt: skip
    assert len(notes) == 1 and notes[0].endswith("without: min_length = 5, min_p = 0.1")
    written = write_generation(special, decode, 32, decoder_only=True)
    assert written.items() >= (given | {"top_k": 50}).items()
    # Without do_sample the model takes the likeliest token, whatever else is written there.
    decode, _ = read(given | {"do_sample": False}, {}, decoder_only=True)
    assert (decode.temperature, decode.top_k, decode.top_p) == (0.0, 0, 1.0)


def test_the_heads_that_follow_speech_are_read_and_written():
    given = {"alignment_heads": [[1, 0], [2, 5]]}
    decode, special = read(given | TOKENS)
    assert decode.alignment_heads == ((1, 0), (2, 5))
    assert write_generation(special, decode, 32).items() >= given.items()
    for wrong in ([1, 0], [[1]], [[1, -1]], "all"):
        with pytest.raises(LabError, match="alignment_heads"):
            read({"alignment_heads": wrong} | TOKENS)


def test_settings_and_defaults_are_read():
    decode, special = read({})
    assert special == SpecialIds(pad=9, eos=0, start=9)
    assert decode == DecodeConfig(**USUAL, max_new_tokens=20)
    decode, special = read(
        {
            "num_beams": 6,
            "num_return_sequences": 2,
            "length_penalty": 0.5,
            "early_stopping": "never",
            "max_length": 12,  # the start token is one of them
            "bad_words_ids": [[9], [0], [4]],  # the end token as a bad word is dropped there
            "suppress_tokens": [3],
            "renormalize_logits": True,
            "forced_eos_token_id": 0,
            "eos_token_id": [0],
            "decoder_start_token_id": 2,
            "no_repeat_ngram_size": 3,
            "min_length": 4,  # so here
            "min_new_tokens": 2,
            "repetition_penalty": 1.0,
            "temperature": 0.3,
            "forced_bos_token_id": None,
        }
    )
    assert special == SpecialIds(pad=9, eos=0, start=2)
    assert decode == DecodeConfig(
        beam_size=6,
        n_best=2,
        length_penalty="power",
        alpha=0.5,
        early_stopping="exact",
        max_new_tokens=11,
        banned_tokens=(3, 4, 9),
        renormalize=True,
        force_eos=True,
        no_repeat_ngram=3,
        min_new_tokens=3,
    )


@pytest.mark.parametrize(
    ("tokens", "expected", "ends"),
    [
        ({"bos_token_id": 1, "eos_token_id": 2}, SpecialIds(pad=2, eos=2, start=1), ()),
        ({"pad_token_id": 0, "eos_token_id": [2]}, SpecialIds(0, 2, NO_TOKEN), ()),
        ({"bos_token_id": 50256, "eos_token_id": None}, SpecialIds(*[NO_TOKEN] * 3), ()),
        # As chat models have them: the first is special, all are kept.
        ({"eos_token_id": [3, 2]}, SpecialIds(3, 3, NO_TOKEN), (3, 2)),
    ],
)
def test_a_decoder_alone_may_lack_special_tokens_have_several_ends_and_draw(tokens, expected, ends):
    given = {"do_sample": True, "max_new_tokens": 5}
    decode, special = read(given, tokens, decoder_only=True)
    assert (special, decode.end_tokens, decode.max_new_tokens) == (expected, ends, 5)
    written = write_generation(special, decode, 32, decoder_only=True)
    assert written["eos_token_id"] == (list(ends) or tokens["eos_token_id"] and special.eos)
    assert read(written, {}, decoder_only=True) == (decode, special)


def test_an_end_token_beyond_the_vocabulary_is_refused_among_several():
    with pytest.raises(LabError, match=r"eos_token_id = \[2, 10\] must be one of the tokens"):
        read({}, {"eos_token_id": [2, 10]}, decoder_only=True)


@pytest.mark.parametrize(
    ("settings", "max_length", "expected"),
    [
        ({}, 32, 20),
        ({}, 8, 7),
        ({"max_length": 20}, 32, 19),
        ({"max_length": 100}, 32, 32),
        ({"max_length": 20, "max_new_tokens": 5}, 32, 5),
    ],
)
def test_the_limit_of_new_tokens(settings, max_length, expected):
    assert read(settings, max_length=max_length)[0].max_new_tokens == expected


def test_old_directories_keep_generation_settings_in_the_model_config():
    config = TOKENS | {"num_beams": 3, "max_length": 7, "bad_words_ids": [[9]], "d_model": 4}
    decode, _ = read(None, config)
    assert (decode.beam_size, decode.max_new_tokens, decode.banned_tokens) == (3, 6, (9,))
    decode, _ = read({}, config)  # the newer file alone counts where there is one
    assert (decode.beam_size, decode.max_new_tokens, decode.banned_tokens) == (1, 20, ())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"repetition_penalty": "high"}, 'repetition_penalty = "high"'),
        ({"bad_words_ids": 5}, "bad_words_ids = 5"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size = -1"),
        ({"min_length": -1}, "min_length = -1"),
        ({"forced_bos_token_id": 10}, "forced_bos_token_id = 10"),
        ({"bad_words_ids": [[10]]}, "banned token 10"),
        ({"early_stopping": "sometimes"}, 'early_stopping = "sometimes"'),
        ({"num_beams": 2.5}, "num_beams = 2.5"),
        ({"num_beams": 0}, "num_beams = 0"),
        ({"length_penalty": "1"}, 'length_penalty = "1"'),
        ({"eos_token_id": [0, 3]}, r"eos_token_id = \[0, 3\]"),
        ({"decoder_start_token_id": 10}, "decoder_start_token_id = 10"),
    ],
)
def test_a_setting_that_changes_tokens_is_refused_by_name(settings, named):
    with pytest.raises(LabError, match=named) as error:
        read(settings)
    assert "dir/generation_config.json" in str(error.value)


def test_written_settings_are_read_back():
    special = SpecialIds(pad=0, eos=1, start=2)
    decode = DecodeConfig(
        beam_size=5,
        n_best=2,
        length_penalty="power",
        alpha=0.25,
        early_stopping="first",
        max_new_tokens=9,
        banned_tokens=(0, 3),
        renormalize=True,
        force_eos=True,
        no_repeat_ngram=2,
        min_new_tokens=4,
    )
    assert read(write_generation(special, decode, 32), {}) == (decode, special)
    assert read(write_generation(special, None, 32), {})[1] == special


def test_only_a_penalty_that_they_have_is_written():
    special = SpecialIds(pad=0, eos=1, start=2)
    with pytest.raises(LabError, match='"gnmt" has no place'):
        write_generation(special, DecodeConfig(beam_size=4, alpha=0.6), 32)
    decode, _ = read(write_generation(special, DecodeConfig(beam_size=4, alpha=0.0), 32), {})
    assert (decode.length_penalty, decode.alpha, decode.max_new_tokens) == ("power", 0.0, 31)
