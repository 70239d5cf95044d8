"""CLIP's byte-level BPE from its files: the ids that the reference implementation gives."""

import json

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders
from tokenizers.pre_tokenizers import ByteLevel

from transformer_lab import text

MERGES = [("l", "o"), ("lo", "w</w>"), ("e", "r</w>"), ("lo", "w"), ("low", "er</w>")]
MERGES += [("'", "s</w>"), ("Ã", "©</w>")]
ALPHABET = sorted(ByteLevel.alphabet())
PIECES = [*ALPHABET, *(c + "</w>" for c in ALPHABET), *map("".join, MERGES)]
VOCAB = {p: i for i, p in enumerate([*PIECES, "<|startoftext|>", "<|endoftext|>"])}
FILES = {
    "vocab.json": json.dumps(VOCAB).encode(),
    "merges.txt": ("#version: 0.2\n" + "\n".join(map(" ".join, MERGES)) + "\n").encode(),
}
CASES = [  # text, ids by transformers 5.24, text of the ids
    ("low", [513], "low"),
    (" LOW  lower's\n", [513, 516, 517], "low lower 's"),
    ("Café e\u0301 x", [66, 64, 69, 518, 518, 343], "café é x"),
    ("10 & a!", [272, 271, 261, 320, 256], "1 0 & a !"),
    ("\u00a0low\tlow", [513, 513], "low low"),
    ("", [], ""),
]


@pytest.fixture(scope="module")
def tokenizer():
    return text.load(FILES)


@pytest.mark.parametrize(("words", "ids", "back"), CASES)
def test_ids_are_the_references_and_return_as_words(tokenizer, words, ids, back):
    assert tokenizer.encode(words) == ids
    assert tokenizer.decode(ids) == back


def test_special_ids_are_known_by_name_and_no_text_spells_them(tokenizer):
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (519, 520, 520)
    assert not {519, 520} & set(tokenizer.encode("<|endoftext|> a <|startoftext|>"))


def test_every_byte_returns_in_lower_case(tokenizer):
    for words in ("😀 ok", "日本", "\x01"):
        assert tokenizer.decode(tokenizer.encode(words)) == words


def test_a_tokenizer_json_and_a_stored_copy_give_the_same(tokenizer):
    theirs = Library.from_str(tokenizer._library.to_str())
    theirs.decoder = decoders.ByteLevel()  # as they store it
    for files in ({"tokenizer.json": theirs.to_str().encode()}, tokenizer.to_files()):
        again = text.load(files)
        for words, ids, back in CASES:
            assert again.encode(words) == ids and again.decode(ids) == back
