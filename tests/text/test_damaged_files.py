"""Files of tokenizers that are damaged or ill meant: one line, and no time or memory lost."""

import json

import pytest

from transformer_lab import text
from transformer_lab.errors import LabError
from transformer_lab.text import TokenizerConfig, library
from transformer_lab.text.library import filled

VOCAB = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nword\n"


def byte_bpe(**changes):
    """A tokenizer.json with other top-level values."""
    config = TokenizerConfig(kind="byte_bpe", vocab_size=300)
    files = text.train(config, ["a word and another word"]).to_files()
    name = next(n for n in files if b'"merges"' in files[n])
    content = json.loads(files[name]) | changes
    return {"tokenizer.json": json.dumps(content).encode()}


@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "unk_token", "mask_token"])
@pytest.mark.parametrize("value", [[1], 1e308, {"content": 3}])
def test_settings_of_a_wrong_type_beside_a_vocabulary_are_one_line_or_passed_over(key, value):
    settings = json.dumps({key: value}).encode()
    try:
        found = text.load({"vocab.txt": VOCAB, "tokenizer_config.json": settings})
    except LabError as error:
        assert "no tokenizer that can be read" in str(error)
    else:
        assert found.encode("a word") == [5, 6]


@pytest.mark.parametrize("name", ["eos", "bos", "pad", "decoder_start"])
@pytest.mark.parametrize("value", [-1, 2**32, [-1], [2**70], "x"])
def test_ids_of_special_tokens_that_no_vocabulary_has_are_passed_over(name, value):
    content = json.dumps({f"{name}_token_id": value}).encode()
    for file in ("config.json", "generation_config.json"):
        found = text.load(byte_bpe() | {file: content})
        assert (found.pad_id, found.eos_id, found.bos_id) == (0, 1, 2), file


def test_a_replacement_that_doubles_forty_times_is_refused_before_it_runs():
    """One letter would become 2^40."""
    doubling = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    normalizer = {"type": "Sequence", "normalizers": [doubling] * 40}
    with pytest.raises(LabError, match="make a letter more than 1,000 letters"):
        text.load(byte_bpe(normalizer=normalizer))


def test_a_regular_expression_that_cannot_end_is_one_line():
    """Each further letter doubles the ways to read the text."""
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated",
             "invert": False}  # fmt: skip
    found = text.load(byte_bpe(pre_tokenizer=split))
    with pytest.raises(LabError, match="the tokenizer's own rules fail at a text"):
        found.encode("x" * 100)


def test_a_panic_of_the_library_is_one_line(monkeypatch):
    class PanicException(BaseException):
        pass

    def panic(*_):
        raise PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(text, "_load", panic)
    with pytest.raises(LabError, match="no tokenizer that can be read .vocab.txt.: called"):
        text.load({"vocab.txt": VOCAB})


def test_words_without_a_gap_are_cut_for_training_and_all_others_are_as_they_stand():
    usual = ["a word", "x" * 999, "hello, " * 500]
    assert list(filled(usual)) == usual
    (cut,) = filled(["y" * 100_000])
    assert cut.split() == ["y" * 1000] * 100
    (cut,) = filled(["=" * 2500])
    assert [len(part) for part in cut.split()] == [1000, 1000, 500]


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_texts_without_endless_words_train_the_tokenizer_that_no_cut_would_have_changed(
    kind, monkeypatch
):
    words = [
        "tok" * 333,
        "-" * 999,
        "ein Wort, kein Wort; 1234 \u4e2d\u6587 " * 100,
        "naïve\t" * 300,
    ]
    config = TokenizerConfig(kind=kind, vocab_size=400)
    found = text.train(config, [" ".join(words)]).to_files()
    monkeypatch.setattr(library, "LONGEST", 10**9)
    assert text.train(config, [" ".join(words)]).to_files() == found
    endless = ["tok" * 1000]
    uncut = text.train(config, endless).to_files()
    monkeypatch.undo()
    assert text.train(config, endless).to_files() != uncut  # the cut is at work
