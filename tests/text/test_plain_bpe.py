"""BPE of words, against a learner that counts everything anew at each step."""

import re
from collections import Counter
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.entry import command
from transformer_lab.errors import LabError
from transformer_lab.text import TokenizerConfig, load, train
from transformer_lab.text.plain_bpe import encode_word, learn, merge

WORDS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}  # the paper's example
TEXTS = [" ".join([word] * count) for word, count in WORDS.items()]


def brute_force(words):
    """Merges and counts by the definition; a word is a tuple of symbols."""
    splits = {(*word, " "): count for word, count in words.items()}
    while True:
        counts = Counter()
        for symbols, count in splits.items():
            for pair in pairwise(symbols):
                counts[pair] += count
        if not counts:
            return
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        yield best, counts[best]
        splits = {tuple(joined(symbols, best)): count for symbols, count in splits.items()}


def joined(symbols, pair):
    symbols = list(symbols)
    for i in range(len(symbols)):
        if tuple(symbols[i : i + 2]) == pair:
            symbols[i : i + 2] = ["".join(pair)]
    return symbols


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text("abc<", min_size=1, max_size=9), st.integers(1, 4), max_size=12))
def test_learning_equals_recounting_everything(words):
    assert list(learn(words)) == list(brute_force(words))


def test_merges_by_hand():
    assert next(learn({"ba": 2, "ac": 2})) == (("a", " "), 2)
    assert next(learn({"zb": 1, "az": 1, "b": 1})) == (("b", " "), 2)
    assert list(learn({"aaa": 1})) == [(("a", "a"), 2), (("a", " "), 1), (("aa", "a "), 1)]
    assert merge(list("aaaba"), ("a", "a")) == ["aa", "a", "b", "a"]
    # The published example.
    merges = list(islice(learn(WORDS), 10))
    assert merges[:4] == [(("e", "s"), 9), (("es", "t"), 9), (("est", " "), 9), (("l", "o"), 7)]
    assert merges == list(islice(brute_force(WORDS), 10))


def test_encoding_merges_by_rank_not_by_length():
    ranks = {("b", "c"): 0, ("a", "b"): 1}
    assert encode_word("abc", ranks) == ["a", "bc", " "]
    assert encode_word("abab", ranks) == ["ab", "ab", " "]
    assert encode_word("abc", {("a", "b"): 0, ("b", "c"): 1, ("ab", "c"): 2}) == ["abc", " "]


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 4), min_size=1))
def test_encoding_a_known_word_repeats_the_merges_of_learning(words):
    merges = [pair for pair, _ in islice(learn(words), 8)]
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    for word in words:
        symbols = [*word, " "]
        for pair in merges:
            symbols = joined(symbols, pair)
        assert encode_word(word, ranks) == symbols


def make(texts=TEXTS, **values):
    return train(TokenizerConfig(kind="plain_bpe", **{"vocab_size": 25, **values}), texts)


def test_the_vocabulary_is_specials_characters_and_merges():
    tokenizer = make()
    pieces = [tokenizer.piece(i) for i in range(tokenizer.vocab_size)]
    assert pieces[4:15] == ["</w>", *"deilnorstw"]
    # Counts 9, 9, 9, 7, 7, 6, 6, 6, 6, 5; of "est</w>" and its like the smallest pair first.
    assert pieces[15:20] == ["es", "est", "est</w>", "lo", "low"] and len(pieces) == 25
    ids = tokenizer.encode("  lowest\n\tlow ")
    assert [tokenizer.piece(i) for i in ids] == ["low", "est</w>", "low</w>"]
    assert tokenizer.decode(ids) == "lowest low"
    assert make(vocab_size=5000).vocab_size < 60


def test_unknown_characters_and_literal_markers():
    tokenizer = make()
    assert tokenizer.encode("lož low").count(tokenizer.unk_id) == 1
    assert tokenizer.decode(tokenizer.encode("lož low")) == "lo\ufffd low"
    marked = make(["a</w>b </w> </w> </s>"], vocab_size=60)
    assert marked.decode(marked.encode("a</w>b </w> </s>")) == "a</w>b </w> </s>"
    assert not {0, 1, 2}.intersection(marked.encode("</s><pad>"))


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_all_but_white_space_returns(text):
    tokenizer = make([text, "a"], vocab_size=500)
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())
    again = load(tokenizer.to_files())
    assert again.encode(text) == tokenizer.encode(text)
    assert again.fingerprint() == tokenizer.fingerprint()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (b"[]", "list of symbols and one of merges"),
        (b'{"symbols": ["a"], "merges": [["a"]]}', "list of symbols and one of merges"),
        (b'{"symbols": ["a", "a"], "merges": []}', "a symbol twice"),
        (b'{"symbols": ["a", "b"], "merges": [["a", "b"]]}', "merges .* not among its symbols"),
    ],
)
def test_a_damaged_file_is_refused(model, words):
    with pytest.raises(LabError, match=words):
        load({**make().to_files(), "plain_bpe.json": model})


def test_the_command_prints_each_merge_and_words_after_it(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\n".join(TEXTS), encoding="utf-8")
    done = command("merges", f"--file={file}", "--merges=3", "lowest", "new")
    assert done.returncode == 0, done.stderr
    lines = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.decode().splitlines()]
    assert lines == [
        ["1", "e + s", "9", "l o w es t </w>", "n e w </w>"],
        ["2", "es + t", "9", "l o w est </w>", "n e w </w>"],
        ["3", "est + </w>", "9", "l o w est</w>", "n e w </w>"],
    ]
    words = command("merges", "low low lower")  # far fewer than 20 merges are possible
    first = " ".join(words.stdout.decode().splitlines()[0].split())
    assert first == "1 l + o 3 lo w </w> lo w e r </w>"
    assert words.stdout.decode().splitlines()[-1].split()[-2:] == ["low</w>", "lower</w>"]
    for arguments, message in (
        ((), "give --file=TEXT.txt, or words"),
        (("--file=/no/such.txt",), "/no/such.txt"),
    ):
        done = command("merges", *arguments)
        assert done.returncode == 2 and done.stdout == b"" and b"Traceback" not in done.stderr
        assert message in done.stderr.decode().strip().splitlines()[-1]
