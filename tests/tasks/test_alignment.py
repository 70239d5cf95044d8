"""Alignment: which tokens count, batches on any mesh, rewards, and users' files."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.tasks.examples import MODEL
from tests.text.test_chat import CHATML, tokenizer_with
from tests.tiny import FAST, RUN, config_of, first_batch, make_trainer, start
from transformer_lab.data import choices
from transformer_lab.data.dialogues import (
    Instruction,
    InstructionsConfig,
    PreferencesConfig,
    load_dialogues,
)
from transformer_lab.data.endings import read_endings
from transformer_lab.data.fetch import cached
from transformer_lab.data.sources import brown
from transformer_lab.errors import LabError
from transformer_lab.text.rewards import brackets, chrf, exact
from transformer_lab.training import runs
from transformer_lab.training.config import resolve
from transformer_lab.training.mesh import make_mesh

CHAT = [
    {"role": "system", "content": "s"}, {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]  # fmt: skip
SMALL = {
    **MODEL, **FAST, "model.max_length": 24, "tokenizer.kind": "char", "batch.rows": 8,
    "batch.length": 8, "data.source": "files", "task.samples": 1, "model.dropout": 0.1,
}  # fmt: skip
PAIRS = [
    {"prompt": f"{a}{b}", "chosen": a, "rejected": b * 2, "margin": 0.5} for a in "abc"
    for b in "def"
]  # fmt: skip
SUMS = [{"prompt": f"{a}{b}=", "answer": a} for a in "abcd" for b in "abcd"]
DRAWS = {"decode.temperature": 1.0, "decode.max_new_tokens": 3, "task.passes": 2}


def write(folder: Path, rows: list[dict], name: str = "rows.jsonl") -> str:
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def aligned(task, folder, rows, **changes):
    values = SMALL | RUN | {"data.path": write(folder, rows), "eval_every": 2}
    return config_of("decoder", task, values, **changes)


def test_the_tokens_of_answers_and_their_ends_are_all_that_is_taught(tmp_path):
    rows = [{"messages": CHAT}, {"prompt": "ab", "answer": "c"}, {"prompt": "b", "answer": "a"}]
    text = "system: s\nuser: a\nassistant: b\nuser: c\nassistant: d\n"
    write(tmp_path, [{"prompt": text, "answer": "b"}], "train.jsonl")
    for split in ("validation", "test"):
        write(tmp_path, rows, f"{split}.jsonl")
    values = SMALL | {"data.path": str(tmp_path), "batch.rows": 1, "batch.length": 60}
    values |= {"model.max_length": 60, "model.mask": "prefix"}
    task = make_trainer(config_of("decoder", "sft", values), 1).task
    (batch,) = task.eval_batches("validation")
    (tokens,), (targets,), (mask,) = (batch[n] for n in ("tokens", "targets", "mask"))
    said = lambda ids: task.tokenizer.decode(ids.tolist())  # noqa: E731
    first = batch["segments"][0] == 1
    assert said(tokens[first][1:]) == text and said(targets[first & mask]) == "b\nd\n"
    assert said(tokens[first & batch["prefix"][0]][1:]) == text[: text.index("b\n")]
    for number, (prompt, answer) in ((2, ("ab", "c")), (3, ("b", "a"))):
        here = batch["segments"][0] == number
        assert said(tokens[here & batch["prefix"][0]][1:]) == prompt
        taught = targets[here & mask].tolist()
        assert said(targets[here & mask]) == answer and taught[-1] == task.tokenizer.eos_id
    assert mask.sum() == task.sizes(batch)["tokens"] == 4 + 1 + 2 + 2
    row = task.examples("test")[0]
    assert said(np.asarray(task.prompt_of(row)[1:])) == text[: text.rindex("d\n")]


def test_a_chat_is_taught_as_the_tokenizers_template_has_it(tmp_path):
    config = aligned("sft", tmp_path, [{"messages": CHAT}] * 3 + SUMS)
    config.tokenizer.kind, config.batch.length, config.model.max_length = "hf", 120, 120
    resolved = resolve(config)
    files = tokenizer_with(CHATML).to_files()
    task = runs.build_task(resolved, files, make_mesh(resolved.run.mesh, 1))
    turns = tuple((message["role"], message["content"]) for message in CHAT)
    (ids,), (kinds,) = task.framed([turns])
    end, decode = task.tokenizer.eos_id, task.tokenizer.decode  # which ends at an end token
    parts = ["".join("|" if i == end else decode([i]) for i in ids[kinds == n]) for n in range(3)]
    given = "system\ns|\nuser\na|\nassistant\n"
    assert parts == [given, "b|\nd|\n", "user\nc|\nassistant\n"]
    start = task.prompt_of(Instruction(turns))
    assert ids[: len(start)].tolist() == start and kinds[len(start)] == 1


def test_each_kind_of_prompt_is_scored_apart(tmp_path):
    rows = [{"prompt": f"{kind}: {a}", "answer": a} for kind in ("Say it", "Add") for a in "abcd"]
    task = make_trainer(aligned("sft", tmp_path, rows, task__kinds="^[^:]+"), 1).task
    asked = task.asked("test") + task.asked("train")
    replies = [row.turns[-1][1] if "Say" in row.turns[0][1] else "?" for row in asked]
    task.asked = lambda split: asked
    task.write = lambda *_: [([], [], [reply]) for reply in replies]
    right = sum(reply != "?" for reply in replies) / len(asked)
    found = task.score(None, "test", dict, True).values
    assert found == {"exact": right, "exact_say_it": 1.0, "exact_add": 0.0}
    with pytest.raises(LabError, match="no regular expression"):
        resolve(aligned("sft", tmp_path, rows, task__kinds="("))


@pytest.mark.skipif(not cached(brown.PACKAGE), reason=f"{brown.PACKAGE} is not in the cache")
def test_the_templates_ask_what_their_answers_say():
    config = InstructionsConfig("templates", validation_share=0.04, test_share=0.08)
    groups = {}
    for row in load_dialogues(config).train:
        (_, prompt), (_, answer) = row.turns
        task, _, asked = prompt.removesuffix("\nAnswer:").partition(": ")
        groups.setdefault(task, []).append((asked, answer.removeprefix(" ")))
    assert len(groups) == 5 and all(len(rows) > 1200 for rows in groups.values())
    assert all(b.split() == a.split()[::-1] for a, b in groups["Write backwards"])
    assert all(str(sum(map(int, a[:-1].split("+")))) == b for a, b in groups["Add the numbers"])
    assert all(brackets.reward(*row, "") == 1 for row in groups["Close the brackets"])
    assert all(b in re.findall(r"[\w']+", a) for a, b in groups["Give the last word"])
    classes = groups["Noun, verb or adjective"]
    assert {b for _, b in classes} == {"noun", "verb", "adjective"}
    words = [re.match(r'"(.+?)" in "(.*)"$', a) for a, _ in classes]
    assert all(match[1] in match[2] for match in words)


CASES = {
    "preferences": (PAIRS, {}),
    "reward": (PAIRS, {}),
    "grpo": (SUMS, {"task.group": 4, **DRAWS}),
}


@pytest.mark.each_run("reward")
@pytest.mark.parametrize("name", CASES)
def test_devices_and_micro_batches_change_no_number(name, tmp_path):
    rows, settings = CASES[name]
    found = []
    for devices, parts in ((1, 1), (8, 2)):
        config = aligned(name, tmp_path, rows * 4, **settings, micro_batches=parts,
                         mesh__data=devices, model__dropout=0.0, batch__rows=16)  # fmt: skip
        trainer = make_trainer(config, devices)
        task, state = trainer.task, start(trainer)
        params = trainer.whole(state)
        task.begin(params, trainer.place)
        batch = task.complete(first_batch(task), 0, lambda: params, trainer.place)  # noqa: B023
        stated = task.abstract_batch()
        assert stated.keys() == batch.keys()
        for key, array in batch.items():
            assert (stated[key].shape, stated[key].dtype) == (array.shape, array.dtype), key
        _, metrics = trainer.train_step(state, trainer.place(batch))
        found.append((batch, jax.device_get(metrics)))
    for batch, metrics in found[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found[0][0], batch)
        assert metrics.keys() == found[0][1].keys()
        for key, value in metrics.items():
            np.testing.assert_allclose(value, found[0][1][key], atol=2e-5, err_msg=key)


def test_answers_to_a_prompt_are_compared_and_the_better_becomes_likelier(tmp_path):
    """GRPO on answers of one token: the one that is rewarded is all that is said in the end."""
    settings = {"task.group": 8, "task.kl": 0.0, "optimizer.learning_rate": 3e-2}
    config = aligned("grpo", tmp_path, SUMS, **settings, **DRAWS | {"task.passes": 1})
    trainer = make_trainer(config, 1)
    task, state = trainer.task, start(trainer)
    assert not task.keeps_start
    task.rewards = lambda row, found, texts: [float(text.startswith("d")) for text in texts]
    means = []
    with task.train_batches() as batches:
        for step in range(25):
            params = trainer.whole(state)
            batch = task.complete(next(batches), step, lambda: params, trainer.place)  # noqa: B023
            if step == 0:
                rows = [task.prompts[i] for i in first_prompts(task)]
                again = task.roll_out(params, rows, 0, trainer.place)
                jax.tree.map(np.testing.assert_array_equal, again, batch)
            state, metrics = trainer.train_step(state, trainer.place(batch))
            means.append(float(metrics["reward"]))
    assert np.mean(means[:3]) < 0.4 and np.mean(means[-3:]) > 0.9


def first_prompts(task):
    return first_batch(task)["prompts"]


def test_rewards_are_functions_of_text():
    assert exact.reward("2+3=", " 5", "5") == 1 and exact.reward("2+3=", "6", "5") == 0
    for answer, worth in (("])", 1), (")]", 0), ("])(", 0), ("]) ", 0), ("][])", 1), ("", 0)):
        assert brackets.reward("([", answer, "])") == worth
    assert chrf.reward("", "the cat", "the cat") == pytest.approx(1)
    assert 0 < chrf.reward("", "the rat", "the cat") < 1


def test_generated_instructions_have_right_answers_and_share_no_sum_between_splits():
    every = load_dialogues(InstructionsConfig(source="brackets"))
    assert every.fingerprint().startswith("491a0ea2bb1fbad2") and len(every.train) == 3200
    rows = [[row.turns[n][1] for n in range(2)] for row in every.train]
    assert all(brackets.reward(*row, "") for row in rows)
    every = load_dialogues(InstructionsConfig(source="sums"))
    parts = [
        {frozenset(row.turns[0][1][:-1].split("+")) for row in some}
        for some in (every.train, every.validation, every.test)
    ]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert sum(map(len, parts)) == 5050 and every.fingerprint().startswith("e6ad1482312a17aa")
    for row in every.test:
        (_, asked), (_, answer) = row.turns
        assert sum(map(int, asked[:-1].split("+"))) == int(answer)


WRONG = [
    ("instructions", '{"prompt": "a"}', ':2: expected strings "prompt" and "answer", or a list'),
    ("instructions", "[1]", ":2: expected an object"),
    ("instructions", '{"messages": []}', ':2: "messages": the last message must be an answer'),
    ("instructions", '{"messages": [{"role": "use", "content": "a"}]}', '"role" of system, user'),
    ("instructions", '{"messages": 3}', "a message is an object"),
    ("preferences", '{"prompt": "a", "chosen": "b"}', ':2: expected "prompt", "chosen" and'),
    ("preferences", '{"prompt": "a", "chosen": [], "rejected": "b"}', "all of them strings or all"),
    ("preferences", '{"prompt": "a", "chosen": "b", "rejected": "c", "margin": "x"}', "'x', expec"),
    ("preferences", '{"prompt": "a", "chosen": "b", "rejected": "c", "margin": NaN}', "a number"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "line", "words"), WRONG)
def test_a_users_row_of_another_form_is_refused_by_file_and_line(kind, line, words, tmp_path):
    (tmp_path / "x.jsonl").write_text("\n" + line, encoding="utf-8")
    config = {"instructions": InstructionsConfig, "preferences": PreferencesConfig}[kind]
    with pytest.raises(LabError, match=words) as found:
        load_dialogues(config(source="files", path=str(tmp_path / "x.jsonl")))
    assert str(found.value).startswith(f"{tmp_path}/x.jsonl:2: ")


def test_pairs_of_chats_and_of_endings_are_read_and_split_by_prompt(tmp_path, monkeypatch):
    chats = [
        {"prompt": CHAT[:2], "chosen": [CHAT[2]], "rejected": [{**CHAT[2], "content": text}]}
        for text in "xyzx"
    ]
    others = [{"prompt": p, "chosen": "a", "rejected": "b"} for p in "pqr"]
    path = write(tmp_path, chats + others)
    found = load_dialogues(PreferencesConfig(source="files", path=path, test_share=0.2))
    assert found.report["duplicate"] == 1
    parts = [{row.prompt for row in getattr(found, s)} for s in ("train", "validation", "test")]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    every = [row for s in ("train", "validation", "test") for row in getattr(found, s)]
    assert (("system", "s"), ("user", "a")) in {row.prompt for row in every} and len(every) == 6

    items = [choices.Item((f"q{n}",), (" a", " b"), n % 2) for n in range(3)]
    monkeypatch.setattr(choices, "published", lambda name: iter(items))
    rows = [item.row for item in read_endings("piqa").parts["train"]]
    pairs = {(r.prompt[0][1], r.chosen[0][1], r.rejected[0][1]) for r in rows}
    assert pairs == {("q0", " a", " b"), ("q1", " b", " a"), ("q2", " a", " b")}


@pytest.mark.parametrize(("task", "changes", "words"), [
    ("grpo", {"task.group": 3}, "batch.rows = 8 is no multiple of task.group = 3"),
    ("grpo", {"task.group": 1}, "task.group = 1: an answer is compared"),
    ("ppo", {"decode.temperature": 0.5}, "set decode.temperature = 1"),
    ("ppo", {"decode.max_new_tokens": 8}, "decode.max_new_tokens = 8 must be .* batch.length = 8"),
    ("ppo", {"task.reward": "exakt"}, 'did you mean "exact"'),
    ("preferences", {"task.loss": "kto"}, "task.loss"),
    ("preferences", {"task.beta": 0}, "task.beta = 0"),
    ("sft", {"task.layout": "stream"}, 'task.layout = "packed"'),
])  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(task, changes, words, tmp_path):
    draws = DRAWS if task in ("grpo", "ppo") else {}
    config = aligned(task, tmp_path, SUMS)
    config.update_from_flattened_dict(draws | changes)
    with pytest.raises(LabError, match=words):
        make_trainer(resolve(config) and config, 1)
