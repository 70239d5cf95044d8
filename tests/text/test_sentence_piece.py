"""Tokenizers made by sentencepiece."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.errors import LabError
from transformer_lab.text import TokenizerConfig, load, train
from transformer_lab.text.sentence_piece import _lines

KINDS = ("bpe", "unigram")
TEXTS = ["hello world  this is\n\ta text ", "the cat sat on the mat", "naïve café"] * 4
EMOJI = "\N{GRINNING FACE}"
PARTS = [" ", "  ", "\t", "\r\n", "▁", "▅", " ⁇ ", "\ufeff", "\0", "</s>", "<0x41>", "é", " the"]
PARTS += ["👨‍👩‍👧"]


def make(kind, texts=TEXTS, **settings):
    return train(TokenizerConfig(kind=kind, **{"vocab_size": 290, **settings}), texts)


def pieces(tokenizer, text):
    return [tokenizer.piece(i) for i in tokenizer.encode(text)]


@pytest.fixture(scope="module")
def lossless():
    return [make(kind, lossless=True, vocab_size=288) for kind in KINDS]


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PARTS)).map("".join)))
def test_a_lossless_tokenizer_returns_every_text(lossless, text):
    for tokenizer in lossless:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not {0, 1, 2, 3}.intersection(ids)
        assert tokenizer.encode_batch([text]) == [ids]


@pytest.mark.parametrize("text", [" a", "a ", "  a   b  ", "a\nb\n", "\t\ta", "a\r\n", "…", "▁a▁"])
def test_a_lossless_tokenizer_keeps_white_space_and_signs(lossless, text):
    assert [tokenizer.decode(tokenizer.encode(text)) for tokenizer in lossless] == [text, text]


def test_a_lossless_tokenizer_learns_indents_and_says_nothing(capfd):
    tokenizer = make("bpe", ["def f():\n        return 1"] * 4, lossless=True, vocab_size=290)
    assert pieces(tokenizer, " " * 8) == ["▁" * 8]
    make("bpe")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_normalised_and_an_unseen_emoji_becomes_bytes_or_is_unknown(kind):
    tokenizer = make(kind, vocab_size=285)
    assert tokenizer.decode(tokenizer.encode("  wait…  ﬁne\n")) == "wait... fine"
    found = pieces(tokenizer, f"the {EMOJI}")
    assert found[-4:] == ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    assert sum(piece.startswith("<0x") for piece in found) == 4
    assert tokenizer.decode(tokenizer.encode(f"the {EMOJI}")) == f"the {EMOJI}"
    tokenizer = make(kind, vocab_size=30, byte_fallback=False)
    assert tokenizer.encode(f"the {EMOJI}").count(tokenizer.unk_id) == 1
    assert EMOJI not in tokenizer.decode(tokenizer.encode(f"the {EMOJI}"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_larger_than_the_texts_support_is_the_real_size(kind, capfd):
    tokenizer = make(kind, vocab_size=5000)
    size = tokenizer.vocab_size
    assert 260 < size < 5000
    assert len(tokenizer.piece(size - 1)) > 0
    assert capfd.readouterr().err == (
        "warning: tokenizer vocab_size 5000 is more than the texts support:"
        f" the tokenizer has {size} pieces\n"
    )
    # It is the largest: asked for by name it comes without a warning, one more does not come.
    assert make(kind, vocab_size=size).vocab_size == size
    assert capfd.readouterr().err == ""
    assert make(kind, vocab_size=size + 1).vocab_size == size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("byte_fallback", "smallest"), [(True, 265), (False, 9)])
def test_a_vocabulary_too_small_is_refused_with_the_smallest_possible(
    kind, byte_fallback, smallest
):
    texts = ["abcd dcba"] * 3  # 4 letters and the space, beside 4 specials and 256 bytes
    for asked in (-1, 0, 2, 4, smallest - 1):
        with pytest.raises(LabError, match=f"vocab_size {asked} is too .* possible is {smallest}$"):
            make(kind, texts, byte_fallback=byte_fallback, vocab_size=asked)
    made = make(kind, texts, byte_fallback=byte_fallback, vocab_size=smallest)
    assert made.vocab_size == smallest


def test_long_lines_and_those_with_the_trainers_own_sign_are_not_dropped():
    tokenizer = make("bpe", ["zebra ▅ zebra"] * 3, vocab_size=271)
    assert pieces(tokenizer, "zebra") == ["▁zebra"]
    long = "zebra " * 2000  # 12,000 bytes, of which the trainer takes 4,192 a line
    tokenizer = make("bpe", [long, "abc"], vocab_size=272)
    assert pieces(tokenizer, "zebra") == ["▁zebra"]


@given(st.text(alphabet="ab \n▅é日", max_size=50).map(lambda text: text * 100))
@settings(max_examples=50, deadline=None)
def test_training_lines_fit_and_keep_the_text(text):
    lines = list(_lines(text))
    assert all(len(line.encode()) <= 4192 and line.strip() for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.replace("▅", " ").split())


def test_training_lines_are_cut_before_white_space():
    text = " ".join(["seven77"] * 1000)
    assert " ".join(line.strip() for line in _lines(text)) == text
    assert len(list(_lines(text))) == 8  # 125 words of 8 characters a line


def test_a_model_with_other_special_tokens_is_refused():
    tokenizer = make("bpe")
    model = tokenizer.to_files()["sentencepiece.model"].replace(b"<pad>", b"<pod>", 1)
    with pytest.raises(LabError, match="does not begin with the pieces <pad> </s> <s> <unk>"):
        load({**tokenizer.to_files(), "sentencepiece.model": model})
