"""Data larger than memory: what is written, what is read back, and in which order."""

import hashlib
import json
import random
from functools import partial

import numpy as np
import pytest

from transformer_lab import text
from transformer_lab.data import packing, preparing, shard_rows
from transformer_lab.data.batching import BatchPlan, choose_buckets
from transformer_lab.data.contents import Plan
from transformer_lab.data.documents import DocumentsConfig
from transformer_lab.data.mixing import MixedPlan, mixing_rates
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.shard_plans import (
    PackedShardPlan,
    ShardPlan,
    StreamShardPlan,
    permuted,
)
from transformer_lab.data.shards import Shards, open_shards
from transformer_lab.errors import LabError

WORDS = ["the", "a", "big", "red", "cup", "moon", "river", "tree", "house", "of", "and", "to"]
EOS, BOS = 1, 2


def sentence(draw, longest=9):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, longest)))


def pairs_file(tmp_path, count=240):
    """Sources come several times, with other cases and targets."""
    draw = random.Random(3)
    rows = [(sentence(draw), sentence(draw)) for _ in range(count)]
    rows += [(a.upper(), sentence(draw)) for a, _ in rows[: count // 4]]
    rows += [("", "nothing"), ("x" * 201, "long")]
    rows = list(dict.fromkeys(rows))
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    return file, rows


def pairs_plan(file, **changes):
    data = PairsConfig(source="files", path=str(file), validation_size=20, test_size=30)
    values = {"task": "translation", "data": data, "tokenizer": text.TokenizerConfig(kind="word")}
    return Plan(**{**values, "shard": 2500, **changes})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Pairs in several shards, the plan that made them, and the rows of the file."""
    folder = tmp_path_factory.mktemp("pairs")
    file, rows = pairs_file(folder)
    plan = pairs_plan(file)
    preparing.prepare(plan, folder / "out", lambda line: None)
    return Shards(folder / "out"), plan, rows


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """Documents in several shards, and the token ids of each."""
    folder = tmp_path_factory.mktemp("documents")
    draw = random.Random(5)
    texts = [sentence(draw, 60) for _ in range(60)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    data = DocumentsConfig(
        source="files", path=str(folder / "texts.jsonl"), validation_share=0.05, test_share=0.0
    )
    plan = Plan("language_modeling", data, text.TokenizerConfig(kind="word"), shard=1500)
    preparing.prepare(plan, folder / "out", lambda line: None)
    shards = Shards(folder / "out")
    (ids,) = shards.take(np.arange(len(shards))).values()
    return shards, ids


def contents(folder):
    return {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest()
        for f in sorted(folder.rglob("*"))
        if f.is_file()
    }


def encoded(shards, texts):
    return [[*ids, EOS] for ids in shards.tokenizer().encode_batch(texts)]


def test_pairs_are_those_of_the_same_file_in_memory_and_read_in_any_order(prepared):
    shards, plan, _ = prepared
    in_memory = load_pairs(plan.data)
    for split in ("validation", "test"):
        assert shards.held_out(split)[""] == getattr(in_memory, split)
    assert shards.report["empty"] == shards.report["too_long"] == 1
    assert len(shards.about["records"]) > 3 and len(shards) == len(in_memory.train)
    whole = shards.take(np.arange(len(shards)))
    ids = np.random.default_rng(0).integers(len(shards), size=60)  # some come twice
    for i, (name, some) in enumerate(shards.take(ids).items()):
        expected = encoded(shards, [pair[i] for pair in in_memory.train])
        assert [row.tolist() for row in whole[name]] == expected
        assert [row.tolist() for row in some] == [expected[number] for number in ids]
    assert len(shards.take(np.zeros(0, np.int64))["source"]) == 0
    # The index groups records of like lengths.
    assert sorted(shards.order.tolist()) == list(range(len(shards)))
    rows = np.repeat(shards.cells, shards.counts, axis=0)
    np.testing.assert_array_equal(shards.lengths[shards.order], rows)
    within = np.split(shards.order.astype(int), np.cumsum(shards.counts)[:-1])
    assert all((np.diff(ids) > 0).all() for ids in within)


def test_splits_of_the_datas_own_stay_and_their_sources_are_not_trained_on(tmp_path):
    for split, rows in (("train", 9), ("test", 2), ("validation", 1)):
        lines = (f"{'W' if split == 'test' else 'w'}{i} a\tb{i}\n" for i in range(rows))
        (tmp_path / f"{split}.tsv").write_text("".join(lines))
    preparing.prepare(pairs_plan(tmp_path), tmp_path / "out", lambda line: None)
    shards = Shards(tmp_path / "out")
    assert shards.held_out("test")[""] == [("W0 a", "b0"), ("W1 a", "b1")]
    assert shards.held_out("validation")[""] == [("w0 a", "b0")]
    assert (len(shards), shards.report["held_out"]) == (7, 2)
    data = PairsConfig(source="reverse", max_pairs=300, validation_size=20, test_size=10)
    preparing.prepare(pairs_plan("", data=data), tmp_path / "made", lambda line: None)
    shards, known = Shards(tmp_path / "made"), load_pairs(data)  # of a set in memory
    assert shards.held_out("test")[""] == known.test and len(shards) == 300
    found = shards.take(np.arange(300))["source"]
    expected = Ragged.from_lists(encoded(shards, [a for a, _ in known.train]))
    np.testing.assert_array_equal(found.values, expected.values)


def test_neither_processes_nor_a_kill_change_a_byte(tmp_path, monkeypatch):
    file, _ = pairs_file(tmp_path)
    quiet = [].append
    preparing.prepare(pairs_plan(file), tmp_path / "whole", quiet)
    preparing.prepare(pairs_plan(file, workers=2), tmp_path / "two", quiet)
    written, write = [], preparing._write_shard

    def count(folder, number, content, most=3):
        if len(written) == most:
            raise KeyboardInterrupt
        written.append(number)
        return write(folder, number, content)

    monkeypatch.setattr(preparing, "_write_shard", count)
    with pytest.raises(KeyboardInterrupt):
        preparing.prepare(pairs_plan(file), tmp_path / "killed", quiet)
    with pytest.raises(LabError, match="no prepared directory"):
        Shards(tmp_path / "killed")
    (tmp_path / "killed" / "shards" / "00003.part").write_bytes(b"half a shard")
    written.clear()
    monkeypatch.setattr(preparing, "_write_shard", partial(count, most=99))
    preparing.prepare(pairs_plan(file), tmp_path / "killed", quiet)
    assert written[0] == 3 and 0 not in written
    expected = contents(tmp_path / "whole")
    assert contents(tmp_path / "two") == contents(tmp_path / "killed") == expected


def test_a_config_that_asks_for_other_data_or_another_tokenizer_is_refused(prepared):
    shards, plan, _ = prepared
    for change, words in (
        ({"sample": 7}, "sample = 20000000"),
        ({"tokenizer": text.TokenizerConfig(kind="char")}, "config.tokenizer.kind = 'word'"),
    ):  # a directory is not finished with other settings either
        with pytest.raises(LabError, match=words):
            preparing.prepare(pairs_plan(plan.data.path, **change), shards.folder, [].append)
    word = text.TokenizerConfig(kind="word")
    data = partial(PairsConfig, source="shards", path=str(shards.folder))
    same = data(validation_size=20, test_size=30)
    assert open_shards(same, word, "translation").fingerprint == shards.fingerprint
    with pytest.raises(LabError, match="config.data.test_size = 31, but .* prepared with 30"):
        open_shards(data(validation_size=20, test_size=31), word, "translation")
    with pytest.raises(LabError, match="set --config.tokenizer.kind=word"):
        open_shards(same, text.TokenizerConfig(kind="char"), "translation")
    with pytest.raises(LabError, match="by --tokenizer=DIR"):
        other = text.train(text.TokenizerConfig(kind="word"), ["other words"])
        open_shards(same, word, "translation", other)
    with pytest.raises(LabError, match="for the task translation"):
        open_shards(same, word, "text_to_text")


def test_texts_with_odd_line_ends_and_half_characters_are_held_out_as_they_are(tmp_path):
    texts = [f"a\u2028b\x85c {i} {half}" for i in range(40) for half in ("\ud800", "d")]
    lines = (json.dumps({"source": t, "target": t}) + "\n" for t in texts)
    (tmp_path / "a.jsonl").write_text("".join(lines))
    preparing.prepare(pairs_plan(tmp_path / "a.jsonl"), tmp_path / "out", lambda line: None)
    shards = Shards(tmp_path / "out")
    found = {row[0] for split in ("test", "validation") for row in shards.held_out(split)[""]}
    assert len(found) == 50 and len(shards) == 30
    assert found < {t.replace("\ud800", "\ufffd") for t in texts}


# Orders.


class Index(Shards):
    """An index alone, with nothing on disk."""

    def __init__(self, cells, counts, cell_parts, parts, order):
        self.cells, self.counts, self.cell_parts = cells, counts, cell_parts
        self.parts, self.order, self.fingerprint, self.folder = parts, order, "f", None

    def __len__(self):
        return int(self.counts.sum())


def index_of(lengths, tasks):
    """The index of records of such lengths, of the tasks 0, 1, ... with the names a, b, ..."""
    both = np.concatenate([tasks[:, None], lengths], axis=1)
    cells, counts = np.unique(both, axis=0, return_counts=True)
    order = np.lexsort((np.arange(len(both)), *both.T[::-1]))
    return Index(cells[:, 1:], counts, cells[:, 0], tuple("abc")[: tasks.max() + 1], order)


def test_an_epoch_of_a_shard_plan_is_one_of_the_plan_in_memory_in_another_order(prepared):
    shards, _, _ = prepared
    lengths = np.asarray(shards.lengths, np.int64)
    shapes = choose_buckets(lengths, 3, 200, 2)
    known = BatchPlan(lengths, shapes, 200, 2)
    plan = ShardPlan(shards, 99, 3, 200, 2, seed=7)
    assert plan.shapes == known.shapes and plan.describe() == known.describe()
    assert plan.padding_share() == pytest.approx(known.padding_share())
    epochs = []
    for epoch in range(2):
        steps = [plan[epoch * len(plan) + i] for i in range(len(plan))]
        epochs.append([ids.tolist() for _, ids in steps])
        mine, theirs = (
            sorted((b, i) for b, ids in found for i in ids.tolist() if i >= 0)
            for found in (steps, known)
        )
        assert mine == theirs and len(mine) == len(shards)
    assert epochs[0] != epochs[1]
    plan = ShardPlan(shards, np.array([5, 7]), 2, 200, 1, seed=0)  # longer ones are left out
    fit = (lengths <= (5, 7)).all(axis=1)
    ids = [i for _, batch in plan for i in batch.tolist() if i >= 0]
    assert sorted(ids) == np.flatnonzero(fit).tolist()
    assert plan.dropped == len(shards) - fit.sum() > 0


def test_parts_are_mixed_as_in_memory(prepared):
    shards, _, _ = prepared
    tasks = np.random.default_rng(0).integers(2, size=len(shards))
    tasks[:80] = 0
    fake = index_of(shards.lengths, tasks)
    rates = mixing_rates(np.bincount(tasks).tolist(), temperature=3.0)
    plan = ShardPlan(fake, 99, 2, 200, 2, 1, rates)
    known = MixedPlan(np.asarray(shards.lengths, np.int64), tasks, rates, plan.shapes, 200, 2, 1)
    np.testing.assert_allclose(plan.shares(), known.shares())
    assert len(plan) == len(known) and plan.padding_share() == pytest.approx(known.padding_share())
    drawn = np.concatenate([ids[ids >= 0] for _, ids in (plan[i] for i in range(3 * len(plan)))])
    for task in range(2):
        often = np.bincount(drawn[tasks[drawn] == task], minlength=len(tasks))[tasks == task]
        assert often.max() - often.min() <= 2 and often.min() >= 1


def test_a_permutation_reaches_each_place_once_and_that_of_a_thousand_million_takes_no_memory():
    for count in (1, 2, 3, 10, 257):
        first, other = (permuted(np.arange(count), count, 5, epoch) for epoch in (0, 1))
        assert sorted(first.tolist()) == sorted(other.tolist()) == list(range(count))
        assert count < 10 or (first != other).any() and (first != np.arange(count)).any()

    class Everything:
        def __getitem__(self, places):
            return places

    cells, counts = np.array([[5, 7], [9, 9]]), np.array([10**9, 3])
    fake = Index(cells, counts, np.zeros(2, np.int64), ("",), Everything())
    plan = ShardPlan(fake, 99, 2, 180, 1, seed=0)
    bucket, ids = plan[len(plan) // 2]
    assert len(plan) == -(-(10**9) // 15) + 1 and plan.shapes[bucket] == (5, 7)
    assert len(set(ids.tolist())) == 15 and max(ids) < 10**9 and np.ptp(ids) > 10**6


@pytest.mark.parametrize("start", [None, 77])
def test_windows_are_those_of_one_stream_of_all_documents(start, stories):
    shards, ids = stories
    before = [] if start is None else [start]
    stream = np.concatenate([[*before, *document, EOS] for document in ids]).astype(np.int32)
    plan = StreamShardPlan(shards, 16, 6, seed=2, start=start)
    load = partial(shard_rows.load_stream, shards=shards, eos=EOS, start=start, ends=plan.ends)
    known = packing.StreamPlan(len(stream), 16, 6, seed=2)
    assert len(plan) == len(known) and plan.padding_share() == known.padding_share()
    for epoch in range(2):
        starts = []
        for step in range(epoch * len(plan), (epoch + 1) * len(plan)):
            _, rows = plan[step]
            batch = load(rows, (16,))
            expected = packing.load_stream(rows, (16,), stream)
            assert batch.keys() == expected.keys()
            for name in batch:
                np.testing.assert_array_equal(batch[name], expected[name])
            starts += rows[rows >= 0].tolist()
        theirs = [known[epoch * len(known) + i][1] for i in range(len(known))]
        assert sorted(starts) == sorted(s for rows in theirs for s in rows.tolist() if s >= 0)


@pytest.mark.parametrize("length", [7, 16, 200])
def test_packed_rows_hold_each_target_of_each_document_once(stories, length):
    shards, ids = stories
    plan = PackedShardPlan(shards, length, 4, seed=1)
    known = packing.pack(ids, length, BOS, EOS)
    assert plan._examples[0] == len(known.tokens)  # as full as in memory
    expected = {(d, i) for d in range(len(ids)) for i in range(len(ids[d]) + 1)}
    seen = set()
    for _, rows in plan:
        batch = shard_rows.load_packed(rows, (length,), shards=shards, bos=BOS, eos=EOS)
        for row, pieces in enumerate(rows):
            for rank, (document, begin) in enumerate(pieces[pieces[:, 0] >= 0].tolist(), 1):
                here = batch["segments"][row] == rank
                inputs = np.concatenate([[BOS], ids[document]])[begin : begin + length]
                targets = np.concatenate([ids[document], [EOS]])[begin : begin + length]
                np.testing.assert_array_equal(batch["tokens"][row][here], inputs)
                np.testing.assert_array_equal(batch["targets"][row][here], targets)
                found = {(document, begin + i) for i in range(here.sum())}
                assert not found & seen
                seen |= found
        np.testing.assert_array_equal(batch["mask"], batch["segments"] > 0)
    assert seen == expected
    assert plan[0][1].tolist() != plan[len(plan)][1].tolist()


def test_the_rows_of_one_process_are_those_of_the_whole_batch(prepared, stories):
    pairs, documents = prepared[0], stories[0]
    records = partial(shard_rows.load_records, shards=pairs, pad_id=0)
    stream = partial(shard_rows.load_stream, shards=documents, eos=EOS)
    packed = partial(shard_rows.load_packed, shards=documents, bos=BOS, eos=EOS)
    loads = [(ShardPlan(pairs, 99, 2, 200, 2, seed=0), records, {"source", "target"})]
    for prefix in (False, True):
        loads += [
            (StreamShardPlan(documents, 16, 6, 0, prefix), stream, {"tokens", "targets"}),
            (PackedShardPlan(documents, 16, 6, 0, prefix), packed, {"tokens", "targets"}),
        ]
    for plan, load, tokens in loads:
        for step in range(6):
            bucket, ids = plan[step]
            needed = np.arange(len(ids)) % 3 == step % 3
            whole_, part = (load(ids, plan.shapes[bucket], n) for n in (None, needed))
            assert whole_.keys() == part.keys()
            for name in whole_:
                rows = needed if name in tokens else slice(None)
                np.testing.assert_array_equal(part[name][rows], whole_[name][rows])
                if name in tokens:
                    assert not part[name][~needed].any()
