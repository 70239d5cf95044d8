"""Benchmarks of endings: items, scores and their errors, and the command on a small run."""

import json
import math

import pytest

from tests.entry import command
from tests.tasks.test_language_modeling import tiny_model
from tests.tiny import leave_run
from transformer_lab.data.choices import Item, load_benchmark
from transformer_lab.errors import LabError
from transformer_lab.tasks import choosing

ROWS = [
    {"context": "ab", "choices": [" cd", " e"], "gold": 0},
    {"context": ["ab c", "ab"], "choices": [" d", " d"], "gold": 1},
    {"context": "", "choices": ["abc"], "gold": 0},
]


def save(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return str(path)


def test_a_file_gives_its_items_in_a_fixed_order_with_examples_before(tmp_path):
    rows = [{"context": f"q{i}", "choices": [" a", f" b{i}"], "gold": 1} for i in range(9)]
    file = save(tmp_path / "own.jsonl", rows)
    whole = load_benchmark(file)
    assert sorted(item.contexts[0] for item in whole.items) == [f"q{i}" for i in range(9)]
    assert load_benchmark(file, limit=4).items == whole.items[:4] and whole.total == 9
    two = load_benchmark(file, shots=2)
    for before, item in zip(whole.items, two.items, strict=True):
        *examples, last = item.contexts[0].split("\n\n")
        assert last == before.contexts[0] and item.choices == before.choices
        assert len(examples) == 2 and f"{last} b{last[1:]}" not in examples
        assert all(text == f"q{text[1]} b{text[1]}" for text in examples)


WRONG = {
    "context": [{"choices": ["a"], "gold": 0}],
    "list of texts": [{"context": "a", "choices": "ab", "gold": 0}],
    "gold": [{"context": "a", "choices": ["a", "b"], "gold": 2}],
    "3 contexts for 2 choices": [{"context": ["a"] * 3, "choices": ["a", "b"], "gold": 0}],
    "has 1 items": [ROWS[0]],
    "either all lines": [ROWS[0], {"context": "a", "answers": ["b"]}],
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_line_is_named(tmp_path, words):
    file = save(tmp_path / "own.jsonl", WRONG[words])
    with pytest.raises(LabError, match=words):
        load_benchmark(file, shots=1)


def test_accuracies_are_of_the_likeliest_ending_under_each_normalisation():
    first = {"log_probs": [-4.0, -5.0], "greedy": [False] * 2, "bytes": [2, 10], "tokens": [2, 2]}
    rows = [first | {"gold": 0}, first | {"gold": 1}, first | {"gold": 0}]
    found = choosing.metrics(rows)
    error = math.sqrt(2 / 3 * 1 / 3 / 2)  # a share's standard error with n - 1
    assert found["acc"] == pytest.approx((2 / 3, error))
    assert found["acc_bytes"] == pytest.approx((1 / 3, error))
    assert found["acc_tokens"] == pytest.approx((2 / 3, error))
    one = [{"log_probs": [x], "greedy": [x > -2], "bytes": [1], "tokens": [1], "gold": 0}
           for x in (-1.0, -3.0)]  # fmt: skip
    found = choosing.metrics(one)
    assert found["acc"] == pytest.approx((0.5, 0.5))
    assert found["perplexity"] == pytest.approx((math.exp(2), math.exp(2)))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    (path / "texts.txt").write_text("\n\n".join(["ab cd", "ab d", "abc"] * 20))
    config = tiny_model(data__source="files", data__path=str(path / "texts.txt"),
                        tokenizer__kind="byte")  # fmt: skip
    leave_run(config, path / "run")
    return path / "run"


def test_the_command_scores_what_its_file_lacks_and_no_more(workdir, tmp_path):
    rows = [*ROWS[:2], *[ROWS[0] | {"context": f"a{i}"} for i in range(6)]]
    file = save(tmp_path / "own.jsonl", rows)
    told = f"--workdir={workdir}", f"--tasks={file}"
    done = command("benchmark", *told, "--limit=4")
    assert done.returncode == 0, done.stderr.decode()
    kept = workdir / "benchmarks" / "own-0shot.jsonl"
    before = kept.read_text()
    assert len(before.splitlines()) == 4
    done = command("benchmark", *told)
    after = kept.read_text()
    assert after.startswith(before) and len(after.splitlines()) == 8
    kept.write_text(after[:-20])  # as a kill may leave it
    again = command("benchmark", *told)
    assert again.stdout == done.stdout and "own.jsonl: 1 of 1" in again.stderr.decode()
    scores = json.loads(done.stdout.decode().splitlines()[-1])["scores"][file]
    found = choosing.metrics(map(json.loads, after.splitlines()))
    assert scores["items"] == scores["of"] == 8
    assert scores["acc"] == pytest.approx(found["acc"])
    assert f"{100 * found['acc'][0]:.1f} +- " in done.stdout.decode()


def test_a_pair_is_the_whole_text_divided(workdir):
    import transformer_lab

    run = transformer_lab.open_run(workdir)
    ids = run.task.tokenizer.encode
    start = run.task.start_id
    assert choosing.encode_pair(run.task, "ab ", "cd") == ([start, *ids("ab")], ids(" cd"))
    assert choosing.encode_pair(run.task, "", "cd") == ([start], ids("cd"))
    items = [Item(*map(tuple, (["ab c", "ab"], [" d", " ef"])), 1)]
    ((_, row),) = choosing.score_items(run.task, Scorer(), None, items)
    assert row == {"log_probs": [-2.0, -3.0], "greedy": [True] * 2, "bytes": [1, 2],
                   "tokens": [2, 3], "gold": 1}  # fmt: skip


def test_a_written_answer_is_what_generate_writes_up_to_a_blank_line(workdir, monkeypatch):
    import transformer_lab

    run = transformer_lab.open_run(workdir, {"decode.max_new_tokens": 6})
    items = [Item((context,), ("",), 0, ("cd",)) for context in ("ab", "a", "abcdef")]
    monkeypatch.setattr(choosing, "ANSWER_TOKENS", 6)
    found = dict(choosing.answer_items(run.task, run.place, run.params, items))
    for n, (wanted,) in enumerate(run.generate(["ab", "a", "abcdef"])):
        assert found[n]["text"] == wanted.split("\n\n")[0]


class Scorer:
    """Gives each continuation its negative length."""

    def __call__(self, params, groups):
        for n in reversed(range(len(groups))):
            yield n, [(-float(len(end)), True) for end in groups[n][1]]


def test_written_answers_are_scored_by_text_by_shared_words_and_by_their_last_number():
    item = Item(("q",), (" 1,540",), 0, ("the 1,540 metres", "1,540"))
    row = choosing.written_row(item, " So 3 * 3 = 9, which is 1540.00")
    assert (row["exact"], row["f1"], row["last_number"]) == (0.0, 0.0, 1.0)
    row = choosing.written_row(item, " The 1,540.\nThe answer is 1,540.")
    assert (row["exact"], row["f1"], row["last_number"]) == (1.0, 1.0, 1.0)
    row = choosing.written_row(item, " 1,540 feet or 9")
    assert (row["exact"], row["f1"], row["last_number"]) == (0.0, 0.4, 0.0)
    found = choosing.metrics([row, row | {"exact": 1.0, "f1": 1.0}])
    assert found["exact"] == (0.5, 0.5) and found["f1"][0] == pytest.approx(0.7)
