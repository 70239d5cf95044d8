"""BERT's pairs of segments and RoBERTa's full sentences."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.data.masking import Masker, MaskingConfig
from transformer_lab.data.sentence_pairs import (
    PairPlan,
    Sentences,
    load_pairs,
    split_sentences,
)
from transformer_lab.errors import LabError
from transformer_lab.text import load

PAD, CLS, SEP = 0, 2, 1
NAMES = ["[PAD]", "[SEP]", "[CLS]", "[UNK]", "[MASK]"]


def numbered(*documents):
    """Documents given by their sentences' sizes; every token of all is another number from 5."""
    fresh = iter(range(5, 10**6))
    return [[[next(fresh) for _ in range(size)] for size in sizes] for sizes in documents]


def some_documents(count, seed=0):
    rng = np.random.default_rng(seed)
    return numbered(*(rng.integers(1, 12, rng.integers(1, 30)).tolist() for _ in range(count)))


@pytest.fixture(scope="module")
def tokenizer():
    pieces = "\n".join([*NAMES, *(f"w{i}" for i in range(5000))])
    return load({"vocab.txt": pieces.encode()})


def rows_of(plan, tokenizer, steps=None):
    """(A, B, is_random) of each real row, all else about it checked."""
    for step in range(len(plan)) if steps is None else steps:
        bucket, ids = plan[step]
        batch = load_pairs(ids, plan.shapes[bucket], plan.sentences, tokenizer)
        for tokens, types, mask, is_random, row in zip(*batch.values(), ids, strict=True):
            size = int(mask.sum())
            assert mask[:size].all() and not tokens[size:].any() and not types[size:].any()
            if row[0] < 0:
                assert size == 0 and is_random == 0
                continue
            first = [*tokens[:size]].index(SEP) + 1 if plan.next_sentence else size
            assert tokens[0] == CLS and tokens[first - 1] == tokens[size - 1] == SEP
            assert not types[:first].any() and types[first:size].all()
            yield tokens[1 : first - 1].tolist(), tokens[first : size - 1].tolist(), int(is_random)


def is_run(tokens):
    return tokens == list(range(tokens[0], tokens[0] + len(tokens)))


def test_case_52_no_pair_called_random_is_really_consecutive(tokenizer):
    documents = some_documents(12)
    document_of = {t: d for d, sentences in enumerate(documents) for s in sentences for t in s}
    plan = PairPlan(Sentences.from_lists(documents, SEP), 24, 4, seed=3)
    labels = Counter()
    for a, b, is_random in rows_of(plan, tokenizer, range(20 * len(plan))):
        labels[is_random] += 1
        assert is_run(a) and is_run(b) and len(a) + len(b) <= 21
        (source,), (other,) = ({document_of[t] for t in part} for part in (a, b))
        assert (source != other) == is_random
        if not is_random:  # B begins after A, and what is between has been cut off
            assert a[-1] < b[0] and (b[0] == a[-1] + 1 or len(a) + len(b) == 21)
    total = sum(labels.values())
    assert total > 1000 and abs(labels[1] / total - 0.5) < 2.5 / total**0.5


def test_case_52_one_document_has_no_random_pair_but_full_sentences(tokenizer):
    sentences = Sentences.from_lists(numbered([3, 4, 5]), SEP)
    with pytest.raises(LabError, match="no random next sentence.*next_sentence = False"):
        PairPlan(sentences, 16, 2)
    rows = list(rows_of(PairPlan(sentences, 16, 2, next_sentence=False), tokenizer))
    assert rows == [(list(range(5, 17)), [], 0)]
    # Two documents of one sentence make random pairs only.
    plan = PairPlan(Sentences.from_lists(numbered([4], [3]), SEP), 12, 2)
    rows = sorted(rows_of(plan, tokenizer))
    assert rows == [([5, 6, 7, 8], [9, 10, 11], 1), ([9, 10, 11], [5, 6, 7, 8], 1)]


def test_case_52_empty_documents_and_blank_lines_leave_no_trace(tokenizer):
    bare = numbered([3, 4], [5])
    padded = [[], [[], bare[0][0], [], bare[0][1], []], [[], []], [*bare[1], []], []]
    one, other = (Sentences.from_lists(d, SEP) for d in (bare, padded))
    assert one.tokens.tolist() == [*range(5, 12), SEP, *range(12, 17), SEP]
    for name in ("tokens", "starts", "ends", "documents"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for nothing in ([], [[]], [[[]]]):
        with pytest.raises(LabError, match="no example to batch"):
            PairPlan(Sentences.from_lists(nothing, SEP), 16, 2)
    texts = ["w1 w2\n\n  \nw3.", "\n \n"]
    encoded = Sentences.encode(map(split_sentences, texts), tokenizer)
    assert encoded.documents.tolist() == [0, 2]
    assert encoded.tokens.tolist() == [6, 7, 8, tokenizer.unk_id, SEP]


def test_a_documents_sentences_are_all_used_and_pairs_are_cut_between_sentences(tokenizer):
    documents = numbered([3, 1, 2, 5, 2, 2], [4, 4, 4, 4])
    ends = {s[-1] for d in documents for s in d}
    plan = PairPlan(Sentences.from_lists(documents, SEP), 200, 1, seed=1)
    seen = set()
    for a, b, _ in rows_of(plan, tokenizer):  # nothing is ever trimmed here
        assert a[-1] in ends and b[-1] in ends and a[0] - 1 in ends | {4}
        seen.update(a)
        seen.update(b)
    assert seen == {t for d in documents for s in d for t in s}


def test_the_longer_segment_is_trimmed_at_either_end(tokenizer):
    plan = PairPlan(Sentences.from_lists(numbered([40, 4], [40, 4]), SEP), 19, 1)
    shapes, cuts = set(), Counter()
    for a, b, is_random in rows_of(plan, tokenizer, range(200 * len(plan))):
        if not is_random:
            shapes.add((len(a), len(b)))
            cuts["front"] += a[0] - (5 if a[0] < 49 else 49)
    assert shapes == {(12, 4)}
    front = cuts["front"] / 28  # tokens lost, of 28 each
    pairs = sum(not r for *_, r in rows_of(plan, tokenizer, range(200 * len(plan))))
    assert abs(front / pairs - 0.5) < 4 * 0.5 / (28 * pairs) ** 0.5
    both = PairPlan(Sentences.from_lists(numbered([40, 40], [40, 40]), SEP), 18, 1)
    assert {(len(a), len(b)) for a, b, _ in rows_of(both, tokenizer)} == {(8, 7)}


def test_a_share_of_the_examples_is_short():
    sentences = Sentences.from_lists(numbered(*[[1] * 200] * 200), SEP)
    full = []
    for share in (0.0, 0.1, 1.0):
        spans = PairPlan(sentences, 53, 8, short_probability=share).examples(0)
        sizes = spans[:, 1] - spans[:, 0] + spans[:, 3] - spans[:, 2]
        full.append(float((sizes == 50).mean()))
    # Some fall short at the end of a document anyway, so the mean is a little below 26.
    assert full[0] > 0.6 and 0.06 < 1 - full[1] / full[0] < 0.14
    assert set(sizes.tolist()) == set(range(2, 51)) and 23 < sizes.mean() < 26


def test_epochs_are_drawn_anew_and_hold_equally_many_examples(tokenizer):
    plan = PairPlan(Sentences.from_lists(some_documents(8), SEP), 32, 4, seed=5)
    count = len(plan)
    epochs = [{tuple(r[:5]) for s in range(count) for r in plan[e * count + s][1]} for e in (0, 1)]
    assert len(epochs[0] & epochs[1]) < len(epochs[0]) / 2
    real = [
        sum(int((plan[e * count + s][1][:, 0] >= 0).sum()) for s in range(count)) for e in (0, 1)
    ]
    assert real[0] == real[1] == len(plan.examples(0))
    kept = plan[0][1].copy()
    plan[0][1][:] = 7
    np.testing.assert_array_equal(plan[0][1], kept)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=6).filter(
        lambda sizes: any(map(any, sizes))
    ),
    st.integers(3, 25),
    st.integers(1, 4),
)
def test_full_sentences_hold_each_token_once_in_rows_that_no_sentence_more_fits(
    sizes, length, rows
):
    documents = numbered(*sizes)
    sentences = Sentences.from_lists(documents, SEP)
    plan = PairPlan(sentences, length, rows, next_sentence=False)
    spans = sorted(tuple(r[:5]) for s in range(len(plan)) for r in plan[s][1] if r[0] >= 0)
    found = [sentences.tokens[a:b].tolist() for a, b, *_ in spans]
    assert [t for row in found for t in row if t != SEP] == [
        t for d in documents for s in d for t in s
    ]
    size_of = {s[0]: len(s) for d in documents for s in d if s}
    for row, (_, end, *_) in zip(found, spans, strict=True):
        assert 0 < len(row) <= length - 2 and SEP not in (row[0], row[-1])
        begin = end + (sentences.tokens[end] == SEP)  # of the next sentence, or the rest of this
        size = size_of.get(sentences.tokens[begin]) if begin < len(sentences.tokens) else None
        assert size is None or begin + size - end + len(row) > length - 2
    assert (np.array(spans)[:, 2:] == 0).all()


def test_masks_are_drawn_each_step_or_stay_with_the_example(tokenizer):
    sentences = Sentences.from_lists(some_documents(6), SEP)
    for dynamic in (True, False):
        plan = PairPlan(sentences, 24, 4, seed=2, next_sentence=False, dynamic=dynamic)
        epochs = [
            {tuple(r[:5]): r[5] for s in range(len(plan)) for r in plan[e * len(plan) + s][1]}
            for e in (0, 1)
        ]
        assert epochs[0].keys() == epochs[1].keys()
        real = [key for key in epochs[0] if key[0] >= 0]
        same = [epochs[0][key] == epochs[1][key] for key in real]
        assert len(set(epochs[0].values())) == len(epochs[0]) and min(epochs[0].values()) >= -1
        assert not any(same) if dynamic else all(same)


def test_a_batch_can_be_masked(tokenizer):
    masker = Masker(tokenizer, MaskingConfig())
    plan = PairPlan(Sentences.from_lists(some_documents(6), SEP), 32, 4, seed=1)
    batch = load_pairs(plan[0][1], (32,), plan.sentences, tokenizer, masker)
    assert {n: (a.shape, a.dtype.name) for n, a in batch.items()} == {
        "tokens": ((4, 32), "int32"),
        "types": ((4, 32), "int32"),
        "mask": ((4, 32), "bool"),
        "is_random": ((4,), "int32"),
        "places": ((4, 5), "int32"),
        "labels": ((4, 5), "int32"),
        "chosen": ((4, 5), "bool"),
    }


def test_plans_of_other_pairs_have_other_fingerprints():
    one, other = (Sentences.from_lists(numbered(*d), SEP) for d in ([[2, 3], [4]], [[2], [3, 4]]))
    plans = [
        PairPlan(one, 16, 2),
        PairPlan(other, 16, 2),
        PairPlan(one, 17, 2),
        PairPlan(one, 16, 3),
        PairPlan(one, 16, 2, seed=1),
        PairPlan(one, 16, 2, next_sentence=False),
        PairPlan(one, 16, 2, short_probability=0.2),
        PairPlan(one, 16, 2, dynamic=False),
    ]
    assert len({plan.fingerprint() for plan in plans}) == len(plans)
    assert PairPlan(one, 16, 2).fingerprint() == plans[0].fingerprint() == plans[0].fingerprint()


@pytest.mark.parametrize(
    "text, expected",
    [
        ('He came. "Why?" She left.', ["He came.", '"Why?"', "She left."]),
        ("Mr. Smith met J. F. Doe. 20 came!", ["Mr. Smith met J. F. Doe.", "20 came!"]),
        ("e.g. this one\n\n  and that  \r\nno end", ["e.g. this one", "and that", "no end"]),
        ("", []),
        (" \n\t\n", []),
    ],
)
def test_a_plain_rule_finds_sentences(text, expected):
    assert split_sentences(text) == expected


@pytest.mark.parametrize(
    "values, message",
    [
        ({"rows": 0}, "rows = 0 must be at least 1"),
        ({"max_length": 4}, "max_length = 4 at least 5"),
        ({"max_length": 2, "next_sentence": False}, "max_length = 2 at least 3"),
        ({"seed": -1}, "seed = -1 not negative"),
        ({"short_probability": 1.5}, "short_probability = 1.5 must lie"),
    ],
)
def test_plans_that_cannot_be_are_refused_in_one_line(values, message):
    sentences = Sentences.from_lists(numbered([3, 4], [5]), SEP)
    with pytest.raises(LabError, match=message):
        PairPlan(sentences, **{"max_length": 16, "rows": 2, **values})
