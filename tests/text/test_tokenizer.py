"""What holds for every kind of tokenizer."""

import json
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text import kinds
from tests.text.kinds import TEXTS, TRAINED, config
from transformer_lab.errors import LabError
from transformer_lab.text import (
    TokenizerConfig,
    load,
    load_dir,
    save_dir,
    statistics,
    train,
)
from transformer_lab.text.tokenizer import KINDS, clean

NASTY = [
    "", "a\0b", "\u0301", "👨\u200d👩\u200d👧 a", "a\r\nb\r\n", "\ufeffhello", "a\ud800b\udc80",
    " \t\n\u3000 ", "<pad></s><s><unk><0x41><|endoftext|> [CLS]", "▁▁a▅ ⁇ ", "y is ?", "a\n\n b",
    "  a  b   ", ">><<", "<s>the </s> cat<pad> </s>", "…",
]  # fmt: skip
every_kind = pytest.mark.parametrize("name", kinds.NAMES)


@pytest.fixture
def tokenizer(name):
    return kinds.tokenizers()[name]


def test_names_are_the_kinds_that_a_config_accepts():
    assert sorted(KINDS) == sorted([*TRAINED, "hf", "marian", "stem", "t5", "wordpiece"])
    assert sorted(kinds.tokenizers()) == sorted(kinds.NAMES)  # the tests have them all
    assert [TokenizerConfig(kind=name).kind for name in KINDS] == [*KINDS]
    values = {"kind": "unigram", "character_coverage": 1}
    assert TokenizerConfig.from_dict(values) == TokenizerConfig("unigram", character_coverage=1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "unigrm"}, 'unknown tokenizer kind "unigrm".*"unigram"'),
        ({"extra_ids": -1}, "extra_ids = -1"),
        ({"vocab_sise": 3}, 'unknown tokenizer setting "vocab_sise".*"vocab_size"'),
        ({"vocab_size": "300"}, "vocab_size must be int, got '300'"),
        ({"lossless": 1}, "lossless must be bool, got 1"),
        ({"lossless": True, "byte_fallback": False}, "lossless=True needs byte_fallback"),
        ({"kind": "word", "lossless": True}, "word tokenizer cannot be lossless"),
        ({"kind": "plain_bpe", "lossless": True}, "plain_bpe tokenizer cannot be lossless"),
        ({"kind": "wordpiece", "lossless": True}, "wordpiece tokenizer cannot be lossless"),
        ({"kind": "byte_bpe", "vocab_size": 259}, "vocab_size 259 is too small .* is 260"),
        ({"kind": "char", "vocab_size": 4}, "smallest possible is 5"),
        ({"character_coverage": 0.5}, "between 0.98 and 1"),
    ],
)
def test_a_bad_setting_is_refused_by_name(values, message):
    with pytest.raises(LabError, match=message):
        TokenizerConfig.from_dict(values)


@every_kind
def test_special_ids_come_first_and_every_id_has_a_piece_and_no_other_has(name, tokenizer):
    if name in TRAINED:
        ids = (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id, tokenizer.unk_id)
        assert ids == (0, 1, 2, 3)
        assert [tokenizer.piece(i) for i in ids] == ["<pad>", "</s>", "<s>", "<unk>"]
    pieces = [tokenizer.piece(i) for i in range(tokenizer.vocab_size)]
    assert len(set(pieces)) == tokenizer.vocab_size
    for outside in (-1, tokenizer.vocab_size):
        with pytest.raises(LabError, match=f"token id {outside} is outside .* {len(pieces)}"):
            tokenizer.piece(outside)
        with pytest.raises(LabError, match=f"token id {outside} is outside"):
            tokenizer.decode([outside])
    # Padding and the start are skipped, and the first end ends the text.
    ids = tokenizer.encode("the cat sat")
    rest = [tokenizer.eos_id, *tokenizer.encode("mat"), tokenizer.vocab_size + 7]
    before = [i for i in (tokenizer.bos_id, tokenizer.pad_id) if i != tokenizer.eos_id]
    padded = np.array([*before, *ids, *rest], np.int32)
    assert tokenizer.decode(padded) == "the cat sat"
    assert tokenizer.decode([]) == ""


@every_kind
def test_no_text_crashes_or_spells_a_special_id_and_a_batch_is_its_texts(name, tokenizer):
    texts = [*TEXTS[:3], *NASTY]
    for text in texts:
        ids = tokenizer.encode(text)
        assert not {tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id}.intersection(ids)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        tokenizer.decode(ids).encode()  # what comes back can always be written to a file
        if name in ("byte", "byte_bpe", "hf") or name.startswith("lossless"):
            assert tokenizer.decode(ids) == clean(text)
    assert tokenizer.encode_batch(iter(texts)) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []
    if name in TRAINED:
        trained = train(config(name, vocab_size=400), [*NASTY, "the cat"])
        assert trained.decode(trained.encode("the cat")) == "the cat"


@given(st.text(), st.lists(st.integers(0, 259), max_size=30))
def test_clean_replaces_only_lone_surrogates_and_any_valid_ids_decode(text, ids):
    assert clean(text) == text
    assert clean("a\ud800b\udc80") == "a\ufffdb\ufffd"
    assert clean("\ud83d\ude00") == "😀"
    decoded = kinds.tokenizers()["byte"].decode(ids)
    assert decoded.encode().decode() == decoded


@every_kind
def test_files_bring_the_same_tokenizer_back(name, tokenizer, tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"of no concern")
    save_dir(tokenizer, tmp_path / "deep")
    for copy in (load(tokenizer.to_files()), load_dir(tmp_path / "deep")):
        assert copy.config == tokenizer.config
        assert copy.vocab_size == tokenizer.vocab_size
        assert copy.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
        assert copy.fingerprint() == tokenizer.fingerprint()
        assert copy.special_ids == tokenizer.special_ids and copy.sentinels == tokenizer.sentinels
    header = json.loads(tokenizer.to_files()["tokenizer.json"])
    assert header["kind"] == tokenizer.config.kind
    assert TokenizerConfig.from_dict(header["config"]) == tokenizer.config
    if name.split()[-1] in KINDS and tokenizer.config.kind not in ("hf", "marian", "t5"):
        # Training again gives the same bytes, in any order of the texts but for unigram.
        texts = iter(TEXTS) if "unigram" in name else reversed(TEXTS)
        assert train(config(name), texts).to_files() == tokenizer.to_files()


@every_kind
def test_words_one_by_one_are_the_pieces_of_their_text(name, tokenizer):
    for words in (["the", "cat", "sat,", "x"], ["cat"], []):
        found = tokenizer.encode_words(words)
        assert len(found) == len(words)
        assert list(chain.from_iterable(found)) == tokenizer.encode(" ".join(words))


@pytest.mark.parametrize("kind", TRAINED)
def test_extra_ids_stand_after_all_pieces(kind):
    plain, tokenizer = kinds.tokenizers()[kind], train(config(kind, extra_ids=4), TEXTS)
    assert tokenizer.vocab_size == plain.vocab_size + 4
    assert tokenizer.sentinels == [plain.vocab_size + i for i in (3, 2, 1, 0)]
    assert set(tokenizer.sentinels) <= tokenizer.special_ids
    for line in [*TEXTS[:3], "<extra_id_0>"]:
        assert tokenizer.encode(line) == plain.encode(line)
    ids = [*tokenizer.encode("the cat"), tokenizer.sentinels[2]]
    assert tokenizer.decode(ids) == f"{plain.decode(ids[:-1])} <extra_id_2>"
    assert load(tokenizer.to_files()).sentinels == tokenizer.sentinels


def test_fingerprints_tell_tokenizers_apart():
    other = train(config("bpe"), [*TEXTS, "a quite different text"])
    prints = [t.fingerprint() for t in (*kinds.tokenizers().values(), other)]
    assert len(set(prints)) == len(prints)
    assert all(len(p) == 64 for p in prints)


EMPTY = [
    *((kind, texts) for kind in TRAINED if kind != "byte" for texts in ([], [""])),
    *((kind, [" ", "\n"]) for kind in ("bpe", "unigram", "word", "plain_bpe")),
    ("bpe", ["\x01\u200b"]),  # which normalisation removes
    *(("wordpiece", texts) for texts in ([], [""], [" \n"], ["\0\u200b"])),
]
PAPER = ["low " * 5 + "lower " * 2 + "newest " * 6 + "widest " * 3]
WITHOUT = "a tokenizer of kind {} is loaded from a model's directory, not trained: .* kind to {}"


@pytest.mark.parametrize(
    ("kind", "texts", "size", "message"),
    [
        *((kind, texts, 285, "training corpus .* is empty") for kind, texts in EMPTY),
        # Five special pieces, a and b, ##b; four and the characters of the words and their end.
        ("wordpiece", ["ab"], 7, "vocab_size 7 is too small .* smallest possible is 8"),
        ("plain_bpe", PAPER, 14, "vocab_size 14 is too small .* smallest possible is 15"),
        ("hf", TEXTS, 285, WITHOUT.format("hf", "byte_bpe")),
        ("marian", TEXTS, 285, WITHOUT.format("marian", "bpe or unigram")),
        ("t5", TEXTS, 285, WITHOUT.format("t5", "unigram, with extra_ids")),
        ("char", "hello", 285, "got one str"),
    ],
)
def test_what_cannot_be_trained_is_refused(kind, texts, size, message):
    with pytest.raises(LabError, match=message):
        train(TokenizerConfig(kind, size), texts)
    if size in (7, 14):  # the smallest possible is made
        assert train(TokenizerConfig(kind, size + 1), texts).vocab_size == size + 1


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_an_error_of_the_source_of_texts_stays_itself(kind):
    def texts():
        yield "some text"
        raise LabError("line 2 of data.txt is not UTF-8")

    with pytest.raises(LabError, match=r"^line 2 of data\.txt is not UTF-8$"):
        train(config(kind), texts())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sentencepiece.model", None, "file sentencepiece.model is missing"),
        ("sentencepiece.model", b"", "not a sentencepiece model: it is empty"),
        ("sentencepiece.model", b"junk", "sentencepiece.model is not a sentencepiece model"),
        ("tokenizer.json", None, "no tokenizer that can be read"),
        ("tokenizer.json", b"{", "tokenizer.json is not valid JSON"),
        ("tokenizer.json", b"\xff\xfe\xff", "tokenizer.json is not valid JSON"),
        ("tokenizer.json", b"[]", "no tokenizer that can be read"),
        ("tokenizer.json", b'{"config": {"kind": "bqe"}}', 'did you mean "bpe"'),
        ("symbols.json", b'{"a": 1}', r"symbols\.json must hold a list"),
        ("symbols.json", b"[1]", r"symbols\.json must hold a list"),
        ("symbols.json", b'["a", "a"]', r"symbols\.json holds a symbol twice"),
    ],
)
def test_damaged_files_are_refused_by_name(name, content, message):
    files = kinds.tokenizers()["char" if name == "symbols.json" else "bpe"].to_files()
    del files[name]
    with pytest.raises(LabError, match=message):
        load(files if content is None else {**files, name: content})


def test_a_missing_directory_is_refused_by_name(tmp_path):
    with pytest.raises(LabError, match=r"no tokenizer directory at .*gone"):
        load_dir(tmp_path / "gone")
    with pytest.raises(LabError, match=str(tmp_path)):
        load_dir(tmp_path)


def test_statistics_are_a_ratio_of_sums():
    tokenizer = train(TokenizerConfig(kind="word", vocab_size=6), ["a a b b c"])
    # 5 tokens of 4 words ("c." is one word, two tokens), of which "c" and "." are unknown.
    assert statistics(tokenizer, ["a b a", "c."]) == {"tokens_per_word": 1.25, "unknown_rate": 0.4}
    with pytest.raises(LabError, match="at least one word"):
        statistics(tokenizer, [" "])
