"""Files of users that several processes read in parts."""

import json

import pytest

from transformer_lab.data.formats import records
from transformer_lab.errors import LabError


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
    for file, words in ((table, "is no Parquet file"), (array, "is no ArrayRecord file")):
        file.write_bytes(b"x" * 99)
        with pytest.raises(LabError, match=words):
            whole(file, "pairs")
