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
from transformer_lab.data.formats import records
from transformer_lab.data.mixing import MixedPlan, mixing_rates
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.data.pipeline import Batches
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.shard_plans import (
    PackedShardPlan,
    ShardPlan,
    StreamShardPlan,
    pack_histogram,
    permuted,
)
from transformer_lab.data.shards import Shards, open_shards
from transformer_lab.errors import LabError

WORDS = ["the", "a", "big", "red", "cup", "moon", "river", "tree", "house", "of", "and", "to"]
EOS, BOS = 1, 2


def sentence(draw, longest=9):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, longest)))


def pairs_file(tmp_path, count=400):
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
    return Plan(**{**values, "shard": 4000, **changes})


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
    texts = [sentence(draw, 60) for _ in range(150)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    data = DocumentsConfig(
        source="files", path=str(folder / "texts.jsonl"), validation_share=0.02, test_share=0.0
    )
    plan = Plan("language_modeling", data, text.TokenizerConfig(kind="word"), shard=3000)
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


def test_the_held_out_pairs_are_those_of_the_same_file_in_memory(prepared):
    shards, plan, _ = prepared
    in_memory = load_pairs(plan.data)
    for split in ("validation", "test"):
        assert shards.held_out(split)[""] == getattr(in_memory, split)
    assert shards.report["empty"] == shards.report["too_long"] == 1


def test_every_other_pair_is_a_record_and_no_held_out_source_is(prepared):
    shards, plan, _ = prepared
    train = load_pairs(plan.data).train
    assert len(shards.about["records"]) > 3 and len(shards) == len(train)
    found = shards.take(np.arange(len(shards)))
    for i, name in enumerate(("source", "target")):
        expected = encoded(shards, [pair[i] for pair in train])
        assert [row.tolist() for row in map(found[name].__getitem__, range(len(train)))] == expected


def test_records_come_in_the_order_asked_for_with_repetitions(prepared):
    shards, _, _ = prepared
    whole = shards.take(np.arange(len(shards)))
    ids = np.random.default_rng(0).integers(len(shards), size=60)
    some = shards.take(ids)
    for name, rows in some.items():
        for place, number in enumerate(ids.tolist()):
            np.testing.assert_array_equal(rows[place], whole[name][number])
    assert len(shards.take(np.zeros(0, np.int64))["source"]) == 0


def test_the_index_groups_records_of_like_lengths(prepared):
    shards, _, _ = prepared
    assert sorted(shards.order.tolist()) == list(range(len(shards)))
    rows = np.repeat(shards.cells, shards.counts, axis=0)
    np.testing.assert_array_equal(shards.lengths[shards.order], rows)
    within = np.split(shards.order.astype(int), np.cumsum(shards.counts)[:-1])
    assert all((np.diff(ids) > 0).all() for ids in within)


def test_neither_processes_nor_a_kill_change_a_byte(tmp_path, monkeypatch):
    file, _ = pairs_file(tmp_path)
    quiet = [].append
    preparing.prepare(pairs_plan(file), tmp_path / "whole", quiet)
    preparing.prepare(pairs_plan(file, workers=2), tmp_path / "two", quiet)
    written, write = [], preparing._write_shard

    def stop_at_the_third(folder, number, content):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(number)
        return write(folder, number, content)

    monkeypatch.setattr(preparing, "_write_shard", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        preparing.prepare(pairs_plan(file), tmp_path / "killed", quiet)
    with pytest.raises(LabError, match="no prepared directory"):
        Shards(tmp_path / "killed")
    (tmp_path / "killed" / "shards" / "00003.part").write_bytes(b"half a shard")
    written.clear()
    monkeypatch.setattr(preparing, "_write_shard", lambda *a: (written.append(a[1]), write(*a))[1])
    preparing.prepare(pairs_plan(file), tmp_path / "killed", quiet)
    assert written[0] == 3 and 0 not in written
    expected = contents(tmp_path / "whole")
    assert contents(tmp_path / "two") == contents(tmp_path / "killed") == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sample": 7}, "sample = 20000000"),
        ({"tokenizer": text.TokenizerConfig(kind="char")}, "config.tokenizer.kind = 'word'"),
    ],
)
def test_a_directory_is_not_finished_with_other_settings(prepared, change, words):
    shards, plan, _ = prepared
    with pytest.raises(LabError, match=words):
        preparing.prepare(pairs_plan(plan.data.path, **change), shards.folder, lambda line: None)


def test_a_config_that_asks_for_other_data_or_another_tokenizer_is_refused(prepared):
    shards, _, _ = prepared
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


# Files in parts.


def whole(file, kind, names=("en", "fr")):
    (part,) = records.parts_of(file, 10**9)
    return list(records.read(part, kind, names))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_parts_of_a_text_file_hold_each_row_once_wherever_they_are_cut(tmp_path, ending):
    rows = [(f"é {i}", "x" * (i % 5)) for i in range(12)]
    tsv, txt = tmp_path / "a.tsv", tmp_path / "a.txt"
    tsv.write_bytes(("\ufeff" + ending.join("\t".join(row) for row in rows)).encode())
    blocks = ["one", "two\nlines", "three", "four\nof\nthem"]
    text_ = ending * 2 + (ending * 3).join(b.replace("\n", ending) for b in blocks[:2])
    txt.write_bytes((text_ + (ending * 2).join(["", *blocks[2:]]) + ending).encode())
    for file, kind, expected in (tsv, "pairs", rows), (txt, "documents", [(b,) for b in blocks]):
        assert whole(file, kind) == expected
        for size in range(1, file.stat().st_size + 1):
            parts = records.parts_of(file, size)
            assert [r for part in parts for r in records.read(part, kind, ("", ""))] == expected


def test_json_lines_parquet_and_array_records_hold_the_same_rows(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow
    from array_record.python.array_record_module import ArrayRecordWriter

    rows = [{"en": f"a{i}", "fr": f"b{i}"} for i in range(20)]
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pyarrow.Table.from_pylist(rows), table, row_group_size=6)
    array = tmp_path / "a.array_record"
    writer = ArrayRecordWriter(str(array), "group_size:1")
    for row in rows:
        writer.write(json.dumps(row).encode())
    writer.close()
    expected = [(row["en"], row["fr"]) for row in rows]
    for file in (lines, table, array):
        parts = records.parts_of(file, max(1, file.stat().st_size // 3))
        assert len(parts) >= 3
        found = [r for part in parts for r in records.read(part, "pairs", ("en", "fr"))]
        assert found == expected


def test_what_cannot_be_read_names_its_place(tmp_path):
    for name, content, words in (
        ("a.tsv", b"a\tb\na\tb\tc\n", "a.tsv:2: expected source<TAB>target, found 3"),
        ("b.tsv", b"a\tb\n\xff\tb\n", "b.tsv:2: not UTF-8 .byte 0xff at column 1"),
        ("c.jsonl", b'{"source": "a"}\n', "c.jsonl:1: expected an object with strings"),
        ("d.jsonl", b"{\n", "d.jsonl:1: not JSON"),
        ("e.parquet", b"PAR", "is no Parquet file"),
        ("f.array_record", b"x" * 99, "is no ArrayRecord file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(LabError, match=words):
            whole(tmp_path / name, "pairs")


def test_splits_of_the_files_own_stay_and_their_sources_are_not_trained_on(tmp_path):
    for split, rows in (("train", 9), ("test", 2), ("validation", 1)):
        lines = (f"{'W' if split == 'test' else 'w'}{i} a\tb{i}\n" for i in range(rows))
        (tmp_path / f"{split}.tsv").write_text("".join(lines))
    preparing.prepare(pairs_plan(tmp_path), tmp_path / "out", lambda line: None)
    shards = Shards(tmp_path / "out")
    assert shards.held_out("test")[""] == [("W0 a", "b0"), ("W1 a", "b1")]
    assert shards.held_out("validation")[""] == [("w0 a", "b0")]
    assert (len(shards), shards.report["held_out"]) == (7, 2)


# Orders.


class Index(Shards):
    """An index alone, with nothing on disk."""

    def __init__(self, cells, counts, cell_parts, parts, order):
        self.cells, self.counts, self.cell_parts = cells, counts, cell_parts
        self.parts, self.order, self.fingerprint, self.folder = parts, order, "f", None

    def __len__(self):
        return int(self.counts.sum())


@pytest.mark.parametrize("count", [1, 2, 3, 10, 257])
def test_a_permutation_reaches_each_place_once(count):
    first, other = (permuted(np.arange(count), count, 5, epoch) for epoch in (0, 1))
    assert sorted(first.tolist()) == sorted(other.tolist()) == list(range(count))
    assert count < 10 or (first != other).any() and (first != np.arange(count)).any()


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
        for found in (steps, list(known)):
            real = [(b, i) for b, ids in found for i in ids.tolist() if i >= 0]
            assert len(real) == len(shards)
        assert sorted(real) == sorted((b, i) for b, ids in steps for i in ids.tolist() if i >= 0)
    assert epochs[0] != epochs[1]
    again = ShardPlan(shards, 99, 3, 200, 2, seed=7)
    assert [again[i][1].tolist() for i in range(len(plan))] == epochs[0]
    other = ShardPlan(shards, 99, 3, 200, 2, seed=8)
    assert len({p.fingerprint() for p in (plan, again, other)}) == 2


def test_longer_records_are_left_out_and_counted(prepared):
    shards, _, _ = prepared
    plan = ShardPlan(shards, np.array([5, 7]), 2, 200, 1, seed=0)
    fit = (np.asarray(shards.lengths) <= (5, 7)).all(axis=1)
    ids = [i for _, batch in plan for i in batch.tolist() if i >= 0]
    assert sorted(ids) == np.flatnonzero(fit).tolist()
    assert plan.dropped == len(shards) - fit.sum() > 0


def test_parts_are_mixed_as_in_memory(prepared):
    shards, _, _ = prepared
    tasks = np.random.default_rng(0).integers(2, size=len(shards))
    tasks[:150] = 0
    both = np.concatenate([tasks[:, None], shards.lengths], axis=1)
    cells, counts = np.unique(both, axis=0, return_counts=True)
    order = np.lexsort((np.arange(len(both)), *both.T[::-1]))
    fake = Index(cells[:, 1:], counts, cells[:, 0], ("a", "b"), order)
    rates = mixing_rates(np.bincount(tasks).tolist(), temperature=3.0)
    plan = ShardPlan(fake, 99, 2, 200, 2, 1, rates)
    known = MixedPlan(np.asarray(shards.lengths, np.int64), tasks, rates, plan.shapes, 200, 2, 1)
    np.testing.assert_allclose(plan.shares(), known.shares())
    assert len(plan) == len(known) and plan.padding_share() == pytest.approx(known.padding_share())
    drawn = np.concatenate([ids[ids >= 0] for _, ids in (plan[i] for i in range(3 * len(plan)))])
    for task in range(2):
        often = np.bincount(drawn[tasks[drawn] == task], minlength=len(tasks))[tasks == task]
        assert often.max() - often.min() <= 2 and often.min() >= 1


def test_the_order_of_a_thousand_million_records_takes_no_memory():
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


def test_best_fit_by_histogram_fills_as_many_rows_as_best_fit_piece_by_piece():
    rng = np.random.default_rng(0)
    for _ in range(30):
        length = int(rng.integers(1, 20))
        sizes = rng.integers(1, length + 1, size=int(rng.integers(0, 60)))
        rows = pack_histogram(np.bincount(sizes, minlength=length + 1).tolist())
        placed = [size for pattern, count in rows for size in pattern * count]
        assert sorted(placed) == sorted(sizes.tolist())
        assert all(sum(pattern) <= length for pattern, _ in rows)
        piecewise = int(packing._best_fit(sizes, length)[0].max(initial=-1)) + 1
        assert sum(count for _, count in rows) == piecewise


@pytest.mark.parametrize("prefix", [False, True])
def test_the_rows_of_one_process_are_those_of_the_whole_batch(prepared, stories, prefix):
    pairs, documents = prepared[0], stories[0]
    loads = [
        (
            ShardPlan(pairs, 99, 2, 200, 2, seed=0),
            partial(shard_rows.load_records, shards=pairs, pad_id=0),
            {"source", "target"},
        ),
        (
            StreamShardPlan(documents, 16, 6, 0, prefix),
            partial(shard_rows.load_stream, shards=documents, eos=EOS),
            {"tokens", "targets"},
        ),
        (
            PackedShardPlan(documents, 16, 6, 0, prefix),
            partial(shard_rows.load_packed, shards=documents, bos=BOS, eos=EOS),
            {"tokens", "targets"},
        ),
    ]
    for plan, load, tokens in loads:
        for step in range(len(plan)):
            bucket, ids = plan[step]
            needed = np.arange(len(ids)) % 3 == step % 3
            whole_, part = (load(ids, plan.shapes[bucket], n) for n in (None, needed))
            assert whole_.keys() == part.keys()
            for name in whole_:
                rows = needed if name in tokens else slice(None)
                np.testing.assert_array_equal(part[name][rows], whole_[name][rows])
                if name in tokens:
                    assert not part[name][~needed].any()


def test_a_saved_place_goes_on_with_the_same_batches_and_other_shards_are_refused(prepared):
    shards, _, _ = prepared
    load = partial(shard_rows.load_records, shards=shards, pad_id=0)

    def batches(seed=0):
        return Batches(ShardPlan(shards, 99, 2, 200, 2, seed=seed), load, by_rows=True)

    with batches() as first, batches() as second, batches(1) as other:
        taken = [next(first)["source"].tolist() for _ in range(9)]
        for _ in range(4):
            next(second)
        state = second.get_state()
        second.restore({"next_index": 0, "fingerprint": state["fingerprint"]})
        second.restore(json.loads(json.dumps(state)))
        assert [next(second)["source"].tolist() for _ in range(5)] == taken[4:]
        with pytest.raises(LabError, match="belongs to other batches"):
            other.restore(state)


def test_sets_in_memory_are_prepared_with_their_own_splits(tmp_path):
    data = PairsConfig(source="reverse", max_pairs=300, validation_size=20, test_size=10)
    plan = Plan("translation", data, text.TokenizerConfig(kind="word"))
    preparing.prepare(plan, tmp_path, lambda line: None)
    shards, known = Shards(tmp_path), load_pairs(data)
    assert shards.held_out("test")[""] == known.test and len(shards) == 300
    found = shards.take(np.arange(300))["source"]
    expected = Ragged.from_lists(encoded(shards, [a for a, _ in known.train]))
    np.testing.assert_array_equal(found.values, expected.values)
