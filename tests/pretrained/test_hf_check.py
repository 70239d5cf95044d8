"""The check against a reference file, and the command that prints it."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.entry import command
from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained.check import Comparison, check, read_arrays, table

FIXTURE = Path(__file__).parents[1] / "fixtures" / "marian_untied"
INPUTS = ("input_ids", "attention_mask", "decoder_input_ids")


@pytest.fixture(scope="module")
def model():
    return pretrained.load(FIXTURE)


@pytest.fixture
def arrays():
    found = read_arrays(FIXTURE / "expected.npz")
    return {name: found[name] for name in (*INPUTS, "logits")}


def save(tmp_path, arrays):
    np.savez(tmp_path / "reference.npz", **arrays)
    return tmp_path / "reference.npz"


def refusal(model, path):
    with pytest.raises(LabError) as error:
        check(model, path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_greatest_difference_and_its_place(model, arrays, tmp_path):
    arrays["logits"][2, 3, 4] += 0.5
    arrays["logits"][1, 0, 0] -= 0.25
    (row,) = check(model, save(tmp_path, arrays))
    assert (row.name, row.shape, row.where) == ("logits", arrays["logits"].shape, (2, 3, 4))
    np.testing.assert_allclose(row.difference, 0.5, atol=1e-4)
    assert row.passes(0.6) and not row.passes(0.4)
    arrays["logits"][0, 0, 1] = np.nan
    (row,) = check(model, save(tmp_path, arrays))
    assert row.difference == np.inf and row.where == (0, 0, 1)


def test_states_and_weights_count_where_the_mask_is_one(model, arrays, tmp_path):
    pad = arrays["attention_mask"] == 0
    b, s = pad.shape
    arrays["encoder_last_hidden_state"] = np.where(pad[..., None], 9.0, np.zeros((b, s, 12)))
    arrays["attention_layer0"] = np.full((b, 2, s, s), 0.25)
    rows = {row.name: row for row in check(model, save(tmp_path, arrays))}
    row, query, key = np.argwhere(~pad)[0][0], *rows["attention_layer0"].where[-2:]
    assert row == 0 and rows["attention_layer0"].difference <= 0.75  # weights lie in 0..1
    assert not pad[rows["attention_layer0"].where[0], [query, key]].any()
    place = rows["encoder_last_hidden_state"].where
    assert not pad[place[:2]] and rows["encoder_last_hidden_state"].difference < 9.0
    assert rows["logits"].passes(1e-4)


def test_tokens_differ_whole_or_not_at_all(model, arrays, tmp_path):
    greedy = read_arrays(FIXTURE / "expected.npz")["greedy"]
    greedy[1, 2] += 1
    greedy[3, 4] += 1
    (row,) = check(model, save(tmp_path, {"input_ids": arrays["input_ids"], "greedy": greedy} | {
        "attention_mask": arrays["attention_mask"]
    }))  # fmt: skip
    assert (row.difference, row.where, row.tokens) == (2, (1, 2), True)
    assert not row.passes(100.0)


def test_an_array_that_cannot_be_computed_is_named(model, arrays, tmp_path):
    arrays |= {"pooler_output": np.zeros(2), "cross_attentions": np.zeros(2)}
    assert "cannot compute cross_attentions, pooler_output" in refusal(
        model, save(tmp_path, arrays)
    )


def change(name, make):
    return lambda arrays: arrays.update({name: make(arrays.get(name))})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change("pixel_values", lambda _: np.zeros(3)), "takes no pixel_values"),
        (change("input_ids", lambda x: x + 41), "input_ids holds ids outside 0..40"),
        (
            change("decoder_input_ids", lambda x: x + 31),
            "decoder_input_ids holds ids outside 0..30",
        ),
        (change("input_ids", lambda x: x.astype(float)), "input_ids is float64"),
        (change("attention_mask", lambda x: x[:, 1:]), "attention_mask has the shape (4, 8)"),
        (change("logits", lambda x: x[:, :2]), "logits: the reference has the shape (4, 2, 31)"),
        (change("greedy", lambda _: np.zeros(3)), "greedy: the reference has the shape (3,)"),
        (lambda arrays: arrays.pop("input_ids"), "the inputs have no input_ids"),
        (lambda arrays: arrays.pop("decoder_input_ids"), "cannot compute logits"),
        (lambda arrays: arrays.pop("logits"), "holds no output"),
    ],
)
def test_a_reference_that_does_not_fit_is_refused(model, arrays, tmp_path, edit, message):
    edit(arrays)
    assert message in refusal(model, save(tmp_path, arrays))


def test_a_bad_file_is_named(model, tmp_path):
    path = tmp_path / "x.npz"
    assert f"{path}: no such file" in refusal(model, path)
    whole = (FIXTURE / "expected.npz").read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        assert f"{path}: damaged or not an .npz file" in refusal(model, path)
    np.save(tmp_path / "y.npy", np.zeros(3))
    assert "not an .npz file" in refusal(model, tmp_path / "y.npy")
    np.savez(path, logits=np.array([{}], dtype=object))
    assert "damaged or not an .npz file" in refusal(model, path)


def test_the_table_has_a_line_for_each_array():
    rows = [
        Comparison("logits", (2, 3), 0.5, (1, 2)),
        Comparison("states", (2,), 2.5e-7, (0,)),
        Comparison("greedy", (1, 4), 0.0, (0, 0), tokens=True),
    ]
    assert table(rows, 1e-4).splitlines() == [
        "array   shape   greatest difference  where",
        "logits  [2, 3]  5.00e-01             [1, 2]  DIFFERS",
        "states  [2]     2.50e-07             [0]     ok",
        "greedy  [1, 4]  0 tokens             -       ok",
    ]


def test_the_command_exits_with_one_beyond_the_tolerance(arrays, tmp_path):
    arrays["logits"][2, 3, 4] += 0.5
    flags = f"--source={FIXTURE}", f"--check={save(tmp_path, arrays)}"
    passed, failed = command("import_hf", *flags, "--tolerance=0.6"), command("import_hf", *flags)
    assert (passed.returncode, failed.returncode) == (0, 1)
    assert passed.stdout.endswith(b"ok\n")
    last = failed.stdout.decode().splitlines()[-1]
    assert last.startswith("logits  [") and last.endswith("[2, 3, 4]  DIFFERS")


def test_the_command_fails_in_one_line(tmp_path):
    shutil.copy(FIXTURE / "config.json", tmp_path)  # without weights
    for flags, words in (
        ([f"--source={tmp_path}"], b"error: "),
        (["--tolerance=much"], b"error: "),
        ([], b"--source=DIR is missing"),
    ):
        done = command("import_hf", *flags)
        assert done.returncode == 2 and done.stdout == b"" and words in done.stderr
        assert len(done.stderr.splitlines()) == 1
