"""Text of one token after the other, for every kind of tokenizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text import kinds
from transformer_lab.errors import LabError
from transformer_lab.text import TextStream

FAMILY = "👨\u200d👩\u200d👧\u200d👦"
TEXT = f" the {FAMILY} café\r\n日本\u0301  {FAMILY * 12} sat on  "


@pytest.fixture(scope="module")
def tokenizers():
    return kinds.tokenizers()


def texts(tokenizer, ids):
    """What the pushes of a stream gave, and its finish."""
    stream = TextStream(tokenizer)
    return [*map(stream.push, ids), stream.finish()]


def test_joined_emoji_stream_without_half_a_character(tokenizers):
    assert texts(tokenizers["byte"], [4 + b for b in "é日".encode()]) == ["", "é", "", "", "日", ""]
    broken = [4 + b for b in b"\xe2\x82a\xf0\x9f"]
    assert texts(tokenizers["byte"], broken) == ["", "", "\ufffda", "", "", "\ufffd"]
    for name, tokenizer in tokenizers.items():
        parts = texts(tokenizer, tokenizer.encode(TEXT))
        whole = tokenizer.decode(tokenizer.encode(TEXT))
        assert "".join(parts) == whole, name
        if "\ufffd" not in whole:  # all characters are known
            assert not any("\ufffd" in part for part in parts), name
        # A character is out with its last token, not at the end of the text.
        assert max(map(len, parts)) <= 20 and len(parts[-1]) <= 3, name


@settings(max_examples=60, deadline=None)
@given(drawn=st.lists(st.integers(0, 2**15) | st.integers(-40, -1), max_size=120))
def test_random_ids_stream_as_they_decode(tokenizers, drawn):
    for name, tokenizer in tokenizers.items():
        few = tokenizer.encode(f"{FAMILY}é  a")
        ids = [few[i % len(few)] if i < 0 else i % tokenizer.vocab_size for i in drawn]
        assert "".join(texts(tokenizer, ids)) == tokenizer.decode(ids), (name, ids)


@pytest.mark.parametrize(
    "spelt",
    [b"\xff" * 100, b"\xf0\x9f" * 50, b"a" + b" " * 90 + b"b", b"\x80"],
    ids=["no byte", "half a character", "blanks", "one byte"],
)
def test_long_runs_of_wrong_bytes_and_of_blanks(tokenizers, spelt):
    byte = [4 + b for b in spelt] * 2
    piece = {name: tokenizers[name] for name in ("bpe", "lossless unigram", "hf with byte pieces")}
    for name, tokenizer in {"byte": tokenizers["byte"], **piece}.items():
        known = {tokenizer.piece(i): i for i in range(tokenizer.vocab_size)}
        ids = byte if name == "byte" else [known[f"<0x{b:02X}>"] for b in spelt] * 2
        assert "".join(texts(tokenizer, ids)) == tokenizer.decode(ids), name
    blanks = tokenizers["marian"]
    known = {blanks.piece(i): i for i in range(blanks.vocab_size)}
    ids = [known["▁dog"], *[known["▁"]] * 50, known["▁dog"], known["▁"]]
    assert "".join(texts(blanks, ids)) == blanks.decode(ids) == "dog" + " " * 51 + "dog"


def test_a_push_decodes_a_short_tail_only(tokenizers, monkeypatch):
    for name, tokenizer in tokenizers.items():
        ids, sizes = tokenizer.encode("the cat sat " * 40 + "é" * 40), []

        def decode(ids, sizes=sizes, decode=tokenizer.decode):
            sizes.append(len(ids))
            return decode(ids)

        monkeypatch.setattr(tokenizer, "decode", decode)
        texts(tokenizer, ids)
        assert len(ids) >= 120 and max(sizes) <= 40, name
        assert len(sizes) < 1.3 * len(ids), name


def test_the_end_token_ends_and_padding_is_skipped(tokenizers):
    for tokenizer in tokenizers.values():
        ids = tokenizer.encode("the cat")
        specials = [tokenizer.bos_id, tokenizer.pad_id, *ids, tokenizer.eos_id, *ids]
        assert "".join(texts(tokenizer, specials)) == tokenizer.decode(specials)
        with pytest.raises(LabError, match="outside the tokenizer's vocabulary"):
            TextStream(tokenizer).push(tokenizer.vocab_size)
        stream = TextStream(tokenizer)
        stream.push(ids[0])
        stream.finish()
        assert stream.push(ids[0]) == stream.finish() == ""
