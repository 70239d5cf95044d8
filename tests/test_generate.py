"""The generate command on a tiny trained run: text, scores, one line for what is wrong."""

import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

import transformer_lab
from tests.entry import command
from tests.tasks.test_language_modeling import tiny_model
from tests.tiny import leave_run, run_alone
from transformer_lab.training import runs

DOCUMENT = "né {} 👩‍🚀 où ü{}?"
LINES = ["né", "", "ü7 👩", "x" * 10]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run on bytes, many of them parts of characters."""
    path = tmp_path_factory.mktemp("run")
    texts = [DOCUMENT.format(i, i % 7) for i in range(60)]
    (path / "texts.txt").write_text("\n\n".join(texts), encoding="utf-8")
    config = tiny_model(
        steps=30, data__source="files", data__path=str(path / "texts.txt"),
        tokenizer__kind="byte", decode__max_new_tokens=12, save_every=100,
    )  # fmt: skip
    run_alone(config, path / "run")
    return path / "run"


@pytest.fixture(scope="module")
def opened(workdir):
    return runs.open_run(ConfigDict(runs.stored_config(workdir)), workdir)


def generate(workdir, *arguments, **options):
    return command("generate", f"--workdir={workdir}", *arguments, **options)


def output(*arguments, **options):
    done = generate(*arguments, **options)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8")


def test_a_prompt_is_continued_as_it_streams_and_never_by_half_a_character(workdir, opened):
    trainer, params = opened
    task, place = trainer.task, trainer.place
    generator = task.generator(place)
    generator.config = replace(generator.config, temperature=1.0)
    (found,) = generator(params, [task.prompt_ids("né")], 2, seed=5)
    del task._generators[place]
    texts = [task.tokenizer.decode(one.ids) for one in found]
    assert "\N{REPLACEMENT CHARACTER}" in "".join(texts) and texts[0] != texts[1]
    stop = next(t for i in range(2, 9) if (t := texts[0][i : i + 2]).isprintable() and "," not in t)
    cut = [text.split(stop)[0] for text in texts]
    sampled = "--prompt=né", "--num_samples=2", "--seed=5", "--config.decode.temperature=1.0"
    assert output(workdir, *sampled) == "\n".join(f"né{text}\n" for text in texts)
    stopped = output(workdir, *sampled, f"--config.decode.stop={stop}")
    assert stopped == "\n".join(f"né{text}\n" for text in cut)


def test_a_file_of_prompts_gives_each_its_text_and_log_probabilities(workdir, opened, tmp_path):
    trainer, params = opened
    task, file = trainer.task, tmp_path / "prompts.txt"
    file.write_text("\n".join(LINES), encoding="utf-8")
    out = output(workdir, f"--prompts={file}", "--log_probs", "--num_samples=2")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["prompt"] for row in rows] == [line for line in LINES for _ in range(2)]
    want = task.generator(trainer.place)(params, [task.prompt_ids(line) for line in LINES])
    for n, (one,) in enumerate(want):
        for row in rows[2 * n : 2 * n + 2]:  # greedy: both samples are the likeliest text
            assert (row["text"], row["ended"]) == (task.tokenizer.decode(one.ids), one.ended)
            assert row["tokens"] == [task.tokenizer.piece(i) for i in one.ids]
            np.testing.assert_allclose(row["log_probs"], one.log_probs, atol=1e-5)


def test_a_draft_changes_no_text_and_must_read_the_same_tokens(workdir, opened, tmp_path):
    plain = output(workdir, "--prompt=né")
    assert output(workdir, "--prompt=né", f"--draft={workdir}") == plain
    leave_run(tiny_model(), tmp_path / "words")
    done = generate(workdir, "--prompt=né", f"--draft={tmp_path / 'words'}")
    assert done.returncode == 2 and b"has another tokenizer" in done.stderr


def test_the_opened_run_gives_the_texts_of_the_command_and_its_own_logits(workdir, opened):
    run = transformer_lab.open_run(workdir, {"decode.temperature": 1.0})
    sampled = "--prompts=-", "--num_samples=2", "--seed=5", "--config.decode.temperature=1.0"
    out = output(workdir, *sampled, stdin="né\nü7\n")
    texts = run.generate(["né", "ü7"], samples=2, seed=5)
    assert out == "".join(
        f"{p}{text}\n" for p, some in zip(["né", "ü7"], texts, strict=True) for text in some
    )
    assert run.generate("né", 2, 5) == texts[0]
    logits = run.logits("ü7 👩")
    ids = run.task.prompt_ids("ü7 👩")
    chances = np.take_along_axis(jax.nn.log_softmax(logits)[:-1], np.array(ids)[1:, None], 1)
    ((nats, tokens),) = run.task.score_texts(run.params, ["ü7 👩"], run.place)
    assert tokens == len(ids) - 1
    np.testing.assert_allclose(-chances.sum(), nats, rtol=1e-5)


def test_scores_are_the_tasks_for_each_line_in_order(workdir, opened):
    trainer, params = opened
    out = output(workdir, "--score=-", stdin="\n".join(LINES) + "\n")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == LINES
    want = trainer.task.score_texts(params, LINES, trainer.place)
    for row, text, (nats, tokens) in zip(rows, LINES, want, strict=True):
        size = len(text.encode())
        assert row["tokens"] == tokens == size  # a byte is a token
        np.testing.assert_allclose(row["log_prob"], -nats, rtol=1e-5, atol=1e-6)
        perplexity = math.exp(nats / tokens) if tokens else 1.0
        np.testing.assert_allclose(row["perplexity"], perplexity, rtol=1e-5)
        bits = nats / math.log(2) / size if size else None
        assert row["bits_per_byte"] == (bits and pytest.approx(bits, rel=1e-5))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give one of --prompt=TEXT, --prompts=FILE and --score=FILE"),
        (["né"], '"né" is no flag: write --NAME=VALUE'),
        (["--prompts=/no/such.txt"], "/no/such.txt: no such file"),
        (["--score=EMPTY"], "holds no line"),
        (["--prompts=/dev/zero"], "/dev/zero is a pipe or a device"),
        ([b"--prompt=caf\xe9"], "--prompt holds bytes that are no UTF-8"),
        (
            ["--prompt=" + "a" * 12, "--config.decode.max_new_tokens=12"],
            "a prompt of 13 tokens and decode.max_new_tokens = 12 do not",
        ),
    ],
    ids=["no prompt", "no flag", "no file", "empty file", "no end", "no UTF-8", "too long"],
)
def test_a_mistake_is_one_line_on_an_output_that_stays_empty(arguments, words, workdir, tmp_path):
    (tmp_path / "empty").touch()
    empty = str(tmp_path / "empty")
    arguments = [a if isinstance(a, bytes) else a.replace("EMPTY", empty) for a in arguments]
    done = generate(workdir, *arguments)
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == 2 and done.stdout == b""
    assert lines[-1].startswith("error: ") and words in lines[-1], done.stderr.decode()
    assert not any("Traceback" in line for line in lines)
