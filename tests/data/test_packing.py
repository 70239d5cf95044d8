from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.data.packing import (
    StreamPlan,
    _best_fit,
    as_stream,
    eval_windows,
    load_packed,
    load_stream,
    pack,
    packed_plan,
)
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.shard_plans import pack_histogram
from transformer_lab.errors import LabError

EOS, BOS = 1, 2


def some_documents(lengths):
    """Every token of all documents is another number."""
    ends = np.cumsum(lengths)
    return [list(range(4 + end - n, 4 + end)) for end, n in zip(ends, lengths, strict=True)]


def pairs_of(documents):
    """Every (input, target) of [bos] d1 ... dN [eos]."""
    return [
        pair
        for document in documents
        for pair in zip([BOS, *document], [*document, EOS], strict=True)
    ]


def epoch_of(plan, number):
    return [plan[step] for step in range(number * len(plan), (number + 1) * len(plan))]


lengths = st.lists(st.integers(0, 40), min_size=1, max_size=12)


def test_a_stream_is_all_documents_each_with_its_end_in_an_order_of_the_seed():
    documents = some_documents([3, 0, 5, 1, 2])
    streams = [as_stream(Ragged.from_lists(documents), EOS, seed).tolist() for seed in (0, 1)]
    started = as_stream(Ragged.from_lists(documents), EOS, 0, start=77).tolist()
    assert started[0] == 77 and [t for t in started if t != 77] == streams[0]
    assert all((a == EOS) == (b == 77) for a, b in zip(started, started[1:], strict=False))
    assert streams[0] != streams[1]
    for stream in streams:
        found, rest = [], stream
        while rest:
            end = rest.index(EOS)
            found, rest = [*found, rest[:end]], rest[end + 1 :]
        assert sorted(found) == sorted(documents)


@pytest.mark.parametrize("tokens, length, rows", [(50, 7, 4), (49, 7, 7), (7, 7, 3), (30, 1, 8)])
def test_an_epoch_of_the_stream_counts_each_target_once_but_for_the_cut(tokens, length, rows):
    stream = np.arange(100, 100 + tokens, dtype=np.int32)
    plan = StreamPlan(tokens, length, rows, seed=3)
    assert plan.shapes == [(length,)] and plan.batches_per_epoch == -(-(tokens // length) // rows)
    cuts = set()
    for epoch in range(6):
        counted = []
        for bucket, ids in epoch_of(plan, epoch):
            batch = load_stream(ids, plan.shapes[bucket], stream)
            assert batch["tokens"].shape == batch["targets"].shape == (rows, length)
            assert batch["mask"].dtype == bool and batch["targets"].dtype == np.int32
            assert (batch["mask"] == (ids >= 0)[:, None]).all()
            assert not batch["tokens"][ids < 0].any() and not batch["targets"][ids < 0].any()
            real, then = batch["tokens"][batch["mask"]], batch["targets"][batch["mask"]]
            assert ((real - 99) % tokens == then - 100).all()  # the next token, around the ring
            counted += then.tolist()
        assert len(set(counted)) == len(counted) == tokens // length * length
        cuts.add(min(ids[ids >= 0].min() for _, ids in epoch_of(plan, epoch)))
    assert cuts <= set(range(length)) and (len(cuts) > 1) == (length > 1)


def test_row_plans_with_other_rows_have_other_fingerprints():
    packed = [pack(Ragged.from_lists(some_documents(n)), 8, BOS, EOS) for n in ([7, 7], [7, 5])]
    plans = [
        StreamPlan(16, 8, 2),
        StreamPlan(17, 8, 2),
        StreamPlan(16, 4, 4),
        StreamPlan(16, 8, 1),
        StreamPlan(16, 8, 2, seed=1),
        StreamPlan(16, 8, 2, prefix=True),
        packed_plan(packed[0], 2),
        packed_plan(packed[1], 2),
        packed_plan(packed[0], 2, prefix=True),
    ]
    assert len({plan.fingerprint() for plan in plans}) == len(plans)
    assert StreamPlan(16, 8, 2).fingerprint() == plans[0].fingerprint()


@settings(max_examples=40, deadline=None)
@given(lengths, st.integers(1, 17), st.integers(1, 5))
def test_an_epoch_of_packed_rows_counts_each_target_of_each_document_once(sizes, length, rows):
    documents = some_documents(sizes)
    packed = pack(Ragged.from_lists(documents), length, BOS, EOS)
    plan = packed_plan(packed, rows, seed=2)
    counted = []
    for bucket, ids in epoch_of(plan, 1):
        batch = load_packed(ids, plan.shapes[bucket], packed)
        assert {(a.shape, a.dtype.name) for n, a in batch.items() if n != "mask"} == {
            ((rows, length), "int32")
        }
        assert (batch["mask"] == (batch["segments"] > 0)).all()
        assert not batch["tokens"][~batch["mask"]].any()
        assert not batch["mask"][ids < 0].any()
        for tokens, targets, segments in zip(
            batch["tokens"].tolist(),
            batch["targets"].tolist(),
            batch["segments"].tolist(),
            strict=True,
        ):
            assert segments == sorted(segments, key=lambda n: n or length + 1)  # padding is last
            assert set(segments) - {0} == set(range(1, max(segments) + 1))
            for i, segment in enumerate(segments):
                if segment:
                    counted.append((tokens[i], targets[i]))
                if segment and i + 1 < length and segments[i + 1] == segment:
                    assert tokens[i + 1] == targets[i]  # one piece is one run of a document
    assert Counter(counted) == Counter(pairs_of(documents))
    slots = len(plan) * rows * length
    assert plan.padding_share() == pytest.approx(1 - len(counted) / slots)


def test_a_long_documents_later_piece_starts_with_the_last_target_before_it():
    packed = pack(Ragged.from_lists([[5, 6, 7, 8, 9], [10]]), 4, BOS, EOS)
    assert packed.tokens.tolist() == [[BOS, 5, 6, 7], [8, 9, BOS, 10]]
    assert packed.targets.tolist() == [[5, 6, 7, 8], [9, EOS, 10, EOS]]
    assert packed.segments.tolist() == [[1, 1, 1, 1], [1, 1, 2, 2]]
    # Best fit decreasing. Targets 7, 6, 4, 3, 3, 2, 1 in rows of 10: first the 3 beside the 7, then
    # 4 beside the 6.
    documents = some_documents([1, 2, 5, 0, 3, 6, 2])
    segments = pack(Ragged.from_lists(documents), 10, BOS, EOS).segments
    fills = [[row.tolist().count(k) for k in range(1, row.max() + 1)] for row in segments]
    assert fills == [[7, 3], [6, 4], [3, 2, 1]]


def packed_with_prefix(sizes, length, rows, steps):
    packed = pack(Ragged.from_lists(some_documents(sizes)), length, BOS, EOS)
    plan = packed_plan(packed, rows, seed=4, prefix=True)
    return [load_packed(plan[step][1], (length,), packed) for step in range(steps)]


def prefixes(batch):
    """(inputs, prefix, targets that count) of each segment, all checked to be where they must."""
    segments = batch.get("segments", np.ones_like(batch["tokens"]))
    for row, (ids, prefix) in enumerate(zip(segments, batch["prefix"], strict=True)):
        assert not prefix[ids == 0].any() and not batch["mask"][row][ids == 0].any()
        for segment in range(1, ids.max() + 1):
            inside = prefix[ids == segment].tolist()
            size = sum(inside)
            assert inside == [True] * size + [False] * (len(inside) - size)
            mask = batch["mask"][row][ids == segment].tolist()
            assert mask == [False] * (size - 1) + [True] * (len(inside) - size + 1)
            yield len(inside), size


def test_a_prefix_is_the_start_of_each_segment_and_only_its_last_target_counts():
    batches = packed_with_prefix([0, 1, 2, 3, 4, 5, 6, 20] * 4, 8, 4, 8)
    found = [pair for batch in batches for pair in prefixes(batch)]
    assert {n for n, _ in found} == set(range(1, 9))
    assert all(size == 1 for n, size in found if n == 1)
    assert all(1 <= size <= n - 1 for n, size in found if n > 1)


def test_all_lengths_of_a_prefix_are_equally_likely_in_every_segment():
    batches = packed_with_prefix([4, 4, 4] * 40, 15, 40, 50)
    sizes = np.array([size for batch in batches for _, size in prefixes(batch)]).reshape(-1, 3)
    for segment in range(3):  # 2,000 draws of 1 ... 4: five deviations are 97
        counts = np.bincount(sizes[:, segment], minlength=5)[1:]
        assert counts.sum() == 2000 and np.abs(counts - 500).max() < 97
    stream = np.arange(4, 4 + 5 * 400, dtype=np.int32)
    plan = StreamPlan(len(stream), 5, 400, prefix=True)
    batches = [load_stream(plan[step][1], (5,), stream) for step in range(5)]
    assert batches[0].keys() == {"tokens", "targets", "mask", "prefix"}
    counts = np.bincount([size for batch in batches for _, size in prefixes(batch)])
    assert counts[0] == 0 and np.abs(counts[1:] - 500).max() < 97


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(1, 17), st.integers(1, 17), st.integers(1, 5))
def test_any_window_and_stride_score_exactly_every_target_once(sizes, length, stride, rows):
    stride = min(stride, length)
    documents = some_documents(sizes)
    given_as, weights = Ragged.from_lists(documents), [3 * n + 1 for n in sizes]
    counted, total = [], 0.0
    for batch in eval_windows(given_as, length, stride, rows, BOS, EOS, weights):
        kinds = [(batch[name].shape, batch[name].dtype.name) for name in batch]
        full = (rows, length)
        assert kinds == [(full, "int32"), (full, "int32"), (full, "bool"), ((rows,), "float32")]
        total += float(batch["bytes"].sum())
        for tokens, targets, mask in zip(
            batch["tokens"].tolist(), batch["targets"].tolist(), batch["mask"], strict=True
        ):
            for i in np.flatnonzero(mask):
                counted.append((tokens[i], targets[i]))
                # All before it in the window is its own document, back to the document's start
                # or far enough.
                seen = tokens[: i + 1]
                assert all(b == a + 1 for a, b in zip(seen[1:], seen[2:], strict=False))
                assert BOS not in seen[1:] and EOS not in seen
                assert seen[0] == BOS or len(seen) >= length - stride
    assert Counter(counted) == Counter(pairs_of(documents))
    assert len(counted) == sum(sizes) + len(sizes)
    assert total == sum(weights)


def test_a_documents_bytes_stand_in_the_row_of_its_first_window():
    batches = eval_windows(
        Ragged.from_lists(some_documents([9, 2])), 4, 2, 4, BOS, EOS, np.array([50, 7])
    )
    assert [batch["bytes"].tolist() for batch in batches] == [[50, 0, 0, 0], [7, 0, 0, 0]]
    unknown = next(eval_windows(Ragged.from_lists(some_documents([9, 2])), 4, 2, 4, BOS, EOS))
    assert unknown["bytes"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: StreamPlan(5, 8, 2), "5 tokens do not fill a row of 8: lower the length"),
        (lambda: StreamPlan(0, 8, 2), "no example to batch"),
        (lambda: StreamPlan(9, 0, 2), "length must be at least 1, got 0"),
        (lambda: StreamPlan(9, 8, 0), "rows must be at least 1, got 0"),
        (lambda: pack(Ragged.from_lists([[5]]), 0, BOS, EOS), "length must be at least 1, got 0"),
        (
            lambda: next(eval_windows(Ragged.from_lists([[5]]), 4, 5, 2, BOS, EOS)),
            "stride must be from 1 to the len",
        ),
        (
            lambda: next(eval_windows(Ragged.from_lists([[5]]), 4, 0, 2, BOS, EOS)),
            "stride must be from 1 to the len",
        ),
    ],
)
def test_rows_that_cannot_be_are_refused_in_one_line(make, message):
    with pytest.raises(LabError, match=message):
        make()


def test_best_fit_by_histogram_fills_as_many_rows_as_best_fit_piece_by_piece():
    rng = np.random.default_rng(0)
    for _ in range(30):
        length = int(rng.integers(1, 20))
        sizes = rng.integers(1, length + 1, size=int(rng.integers(0, 60)))
        rows = pack_histogram(np.bincount(sizes, minlength=length + 1).tolist())
        placed = [size for pattern, count in rows for size in pattern * count]
        assert sorted(placed) == sorted(sizes.tolist())
        assert all(sum(pattern) <= length for pattern, _ in rows)
        piecewise = int(_best_fit(sizes, length)[0].max(initial=-1)) + 1
        assert sum(count for _, count in rows) == piecewise
