"""Characters, words and bytes."""

from hypothesis import given
from hypothesis import strategies as st

from transformer_lab.text import TokenizerConfig, train

ALPHABET = "ab \n\té日\0\u0301\U0001f600"


def make(kind, texts, vocab_size=4000):
    return train(TokenizerConfig(kind=kind, vocab_size=vocab_size), texts)


def pieces(tokenizer):
    return [tokenizer.piece(i) for i in range(4, tokenizer.vocab_size)]


def test_most_frequent_first_and_ties_in_order_of_the_symbol():
    texts = ["b a b c", "d c a b"]
    assert pieces(make("word", texts)) == ["b", "a", "c", "d"]
    assert pieces(make("word", texts[::-1], vocab_size=7)) == ["b", "a", "c"]
    assert pieces(make("char", ["cbabc"])) == ["b", "c", "a"]
    assert make("char", ["abc"], vocab_size=6).vocab_size == 6  # an upper bound
    assert make("char", ["abc"], vocab_size=4000).vocab_size == 7
    assert make("byte", ["abc"], vocab_size=4000).vocab_size == 260


def test_words_split_at_white_space_and_punctuation():
    tokenizer = make("word", ["It's  on_2,\nÉté!"])
    ids = tokenizer.encode("It's  on_2,\nÉté!")
    assert [tokenizer.piece(i) for i in ids] == ["It", "'", "s", "on_2", ",", "Été", "!"]
    assert tokenizer.decode(ids) == "It ' s on_2 , Été !"


def test_unknown_words_and_characters_show_when_decoded():
    word, char = make("word", ["a b"]), make("char", ["a b"])
    assert word.encode("a x b") == [4, 3, 5]
    assert word.decode([4, 3, 5]) == "a <unk> b"
    assert char.decode(char.encode("a\U0001f600b")) == "a\ufffdb"


@given(st.text(alphabet=ALPHABET))
def test_characters_that_were_seen_return(text):
    tokenizer = make("char", [ALPHABET])
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text)


@given(st.text())
def test_bytes_return_every_text(text):
    tokenizer = make("byte", [])
    assert tokenizer.encode(text) == [4 + byte for byte in text.encode()]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_broken_and_unknown_bytes_decode_to_replacement_characters():
    byte = make("byte", [])
    for raw, text in (
        (b"a\xff", "a\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xc3(", "\ufffd("),
        (b"\xed\xa0\x80", "\ufffd" * 3),
    ):
        assert byte.decode([4 + one for one in raw]) == text
    assert byte.decode([101, 3, 102]) == "a\ufffdb"
    assert byte.piece(4 + 255) == "<0xFF>"


def test_words_of_one_stem_are_one_token():
    """Examples of the published algorithm (Porter 2001, Snowball's English)."""
    tok = make("stem", ["connect connected connecting connections.", "Ponies happily generously"])
    ids = tok.encode("Connections connect, connecting")
    assert ids[0] == ids[1] == ids[3] != tok.unk_id == ids[2]
    assert tok.decode(tok.encode("ponies happily generously.")) == "poni happili generous ."
