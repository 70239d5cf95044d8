"""kNN-LM by brute force, exact search, and the commands that search a folder."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.entry import command
from tests.tasks.examples import config_of
from tests.tiny import make_trainer
from transformer_lab.data import passages
from transformer_lab.data.nearest import nearest
from transformer_lab.errors import LabError
from transformer_lab.tasks.nearest_tokens import Reader, mixed_bits


@pytest.mark.parametrize("squared", [False, True])
def test_the_nearest_are_those_of_a_whole_sort(squared, monkeypatch):
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(5, 3)), rng.normal(size=(40, 3)).astype(np.float16)
    keys[30] = keys[4]
    monkeypatch.setattr("transformer_lab.data.nearest.NUMBERS", 80)  # two queries at once
    near, numbers = nearest(queries.astype(np.float32), keys, 6, squared)
    exact = keys.astype(np.float64)
    for query, values, found in zip(queries, near, numbers, strict=True):
        scores = np.square(exact - query).sum(axis=1) if squared else -exact @ query
        order = np.argsort(scores, kind="stable")[:6]
        assert found.tolist() == order.tolist()
        np.testing.assert_allclose(values, scores[order] * (1 if squared else -1), atol=1e-4)
    assert nearest(queries.astype(np.float32), keys[:2], 6)[1].shape == (5, 2)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    config = config_of("language_modeling", tmp_path_factory.mktemp("data"))
    trainer = make_trainer(config, 1)
    return Reader(trainer.task, trainer.whole(trainer.init()), trainer.place)


def test_the_mixture_is_counted_by_hand_from_the_models_own_states(reader):
    store, test = reader("train"), reader("test")
    task = reader.task
    rows = [
        [task.start_id, *task.tokenizer.encode(t), task.tokenizer.eos_id] for t in task.data.test
    ]
    longest = max(map(len, rows))

    @jax.jit
    def read(tokens):
        apply = partial(task.model.apply, {"params": reader.params}, tokens)
        return apply(method="states")[0], jax.nn.softmax(apply()[0])

    states, chances, targets = [], [], []
    for ids in rows:
        found = read(jnp.asarray([ids[:-1] + [0] * (longest - len(ids))], jnp.int32))
        for kept, values in zip((states, chances), found, strict=True):
            kept.append(values[: len(ids) - 1])
        targets += ids[1:]
    assert test.tokens.tolist() == targets
    np.testing.assert_allclose(test.states, np.concatenate(states), atol=1e-4)
    own = np.concatenate(chances)[np.arange(len(targets)), targets]
    bits = []
    for state, target, chance in zip(test.states, targets, own, strict=True):
        distances = np.square(store.states - state).sum(axis=1)
        some = np.argsort(distances, kind="stable")[:4]
        weights = np.exp(-distances[some] / 2.0)
        near = weights[store.tokens[some] == target].sum() / weights.sum()
        bits.append(-math.log2(0.3 * near + 0.7 * chance))
    size = sum(len(text.encode()) for text in task.data.test)
    found = mixed_bits(store, test, 4, [2.0], [0.0, 0.3])
    assert found[0, 1] == pytest.approx(sum(bits) / size, rel=1e-4)
    assert found[0, 0] == pytest.approx(-np.log2(own).sum() / size, rel=1e-4)
    some = reader("train", limit=1)
    first = len(task.tokenizer.encode(task.data.train[0])) + 1
    assert len(some.tokens) == first and some.bytes == len(task.data.train[0].encode())


def test_passages_end_at_blank_lines_and_long_paragraphs_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "WORDS", 3)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.md").write_text("# One\n\ntwo three\n\n\nfour\nfive\n")
    (tmp_path / "b.txt").write_text("\n" + "one two\n" * 4)
    (tmp_path / "c.png").write_text("no text")
    found = [
        (p.file[len(str(tmp_path)) + 1 :], p.line, p.text) for p in passages.read_folder(tmp_path)
    ]
    assert found == [
        ("b.txt", 2, "one two one two one two"), ("b.txt", 5, "one two"),
        ("sub/a.md", 1, "# One two three"), ("sub/a.md", 6, "four five"),
    ]  # fmt: skip


def test_a_folder_is_indexed_and_searched_by_words(tmp_path):
    (tmp_path / "notes.txt").write_text("the cat sat\n\nand birds sing")
    target = tmp_path / "notes.npz"
    assert command("index", f"--folder={tmp_path}", f"--target={target}").returncode == 0
    found = command("search", f"--index={target}", "Cat", "dog")
    _, where, text = found.stdout.decode().strip().split("\t")
    assert where == f"{tmp_path / 'notes.txt'}:1" and text.startswith("the cat sat")
    index = passages.Index.load(target)
    passages.Index(index.passages, "hf:DIR", np.eye(1, 2, dtype=np.float32)).save(target)
    loaded = passages.Index.load(target)
    assert loaded.source == "hf:DIR"
    assert loaded.search("x", 3, lambda query: np.array([0.5, 1])) == [(0.5, index.passages[0])]
    found = command("index", f"--folder={tmp_path}/none", f"--target={target}")
    assert found.returncode and b"no text lies there" in found.stderr


def test_bad_input_is_named(tmp_path):
    with pytest.raises(LabError, match="no text lies there"):
        passages.read_folder(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(LabError, match=r"a.txt:2: not UTF-8"):
        passages.read_folder(tmp_path)
    for content in (b"x", b"PK\x03\x04"):
        (tmp_path / "b.npz").write_bytes(content)
        with pytest.raises(LabError, match="b.npz is no index"):
            passages.Index.load(tmp_path / "b.npz")
