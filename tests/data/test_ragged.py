import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.data.ragged import Ragged, fill, lengths_of
from transformer_lab.errors import LabError

rows_of_ids = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=8)


@settings(max_examples=50, deadline=None)
@given(rows_of_ids, st.lists(st.integers(0, 99), max_size=10))
def test_rows_come_back_as_they_went_in_and_in_any_order(lists, ids):
    ragged = Ragged.from_lists(lists)
    ids = [i % len(lists) for i in ids if lists]
    assert [row.tolist() for row in ragged.take(np.array(ids, np.int64))] == [lists[i] for i in ids]
    assert [row.tolist() for row in ragged] == lists
    assert ragged.lengths().tolist() == [len(row) for row in lists]
    assert [ragged[i - len(lists)].tolist() for i in range(len(lists))] == lists


def test_a_row_is_a_view_and_a_place_outside_is_an_index_error():
    ragged = Ragged.from_lists([[1, 2], [3]])
    assert np.shares_memory(ragged[1], ragged.values)
    for place in (2, -3):
        with pytest.raises(IndexError, match=f"row {place} of 2"):
            ragged[place]
    with pytest.raises(OverflowError):  # an id too large for int32 is not wrapped
        Ragged.from_lists([[2**31]])


@pytest.mark.parametrize("offsets", [[], [0], [1, 3], [0, 2], [0, 2, 1, 3], [0, 4]])
def test_offsets_that_do_not_partition_the_values_are_refused(offsets):
    with pytest.raises(LabError, match="Ragged.offsets must rise from 0 to .* 3$"):
        Ragged(np.array([5, 6, 7], np.int32), np.array(offsets, np.int64))


def test_fill_pads_right_and_masks_by_length_not_by_the_padding_id():
    pairs = {
        "source": Ragged.from_lists([[7, 0, 1], [8, 1], []]),
        "target": Ragged.from_lists([[4, 1], [5, 6, 2, 1], [1]]),
    }
    assert lengths_of(pairs).tolist() == [[3, 2], [2, 4], [0, 1]]
    batch = fill(pairs, np.array([1, -1, 0, 2]), (3, 4), pad_id=0)
    assert {name: (array.dtype.name, array.tolist()) for name, array in batch.items()} == {
        "source": ("int32", [[8, 1, 0], [0, 0, 0], [7, 0, 1], [0, 0, 0]]),
        "source_mask": ("bool", [[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]]),
        "target": ("int32", [[5, 6, 2, 1], [0, 0, 0, 0], [4, 1, 0, 0], [1, 0, 0, 0]]),
        "target_mask": ("bool", [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]]),
    }
    batch = fill(pairs, np.array([-1, 2]), (1, 2), pad_id=9)
    assert batch["source"].tolist() == [[9], [9]]
    assert batch["target"].tolist() == [[9, 9], [1, 9]]
    with pytest.raises(LabError, match='"target" of example 1 has 4 tokens .* holds 3'):
        fill(pairs, np.array([0, 1]), (3, 3), pad_id=0)  # nothing is cut
    with pytest.raises(LabError, match="'source': 1, 'target': 2"):
        lengths_of({"source": Ragged.from_lists([[1]]), "target": Ragged.from_lists([[1], [2]])})
