"""Retrieval: BM25 and the scores by hand, the losses by brute force, what training reaches."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.examples import config_of
from tests.tiny import first_batch, make_trainer
from transformer_lab.data.bm25 import BM25
from transformer_lab.data.choices import Item
from transformer_lab.data.formats import beir
from transformer_lab.data.searches import SearchesConfig
from transformer_lab.data.sources import boolq, libreoffice_help
from transformer_lab.data.splits import Report
from transformer_lab.errors import LabError
from transformer_lab.ops.retrieval import max_similarity
from transformer_lab.tasks.retrieval import ranks_of
from transformer_lab.tasks.scores import ranking
from transformer_lab.training.state import loss_and_gradient

DOCUMENTS = ["the cat sat", "The CAT, the cat and a dog", "birds"]


def test_bm25_is_its_formula_and_ignores_case():
    k1, b, mean = 1.5, 0.75, (3 + 7 + 1) / 3
    idf = lambda n: math.log(1 + (3 - n + 0.5) / (n + 0.5))  # noqa: E731
    weight = lambda f, length: f * (k1 + 1) / (f + k1 * (1 - b + b * length / mean))  # noqa: E731
    found = BM25(DOCUMENTS).scores(["Cat dog", "unknown", "birds birds"])
    expected = [
        [idf(2) * weight(1, 3), idf(2) * weight(2, 7) + idf(1) * weight(1, 7), 0],
        [0, 0, 0],
        [0, 0, 2 * idf(1) * weight(1, 1)],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_scores_of_a_ranking_are_those_counted_by_hand():
    scores = np.zeros((2, 12), np.float32)
    scores[0, [3, 5, 7]] = 3, 2, 1  # 5 and 0 are right: ranks 2 and 4, as 0 is the first of equals
    scores[1] = -np.arange(12)  # only document 11 is right: rank 12
    found = ranking(scores, [(5, 0), (11,)], "own_")
    gain = (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3))
    assert found == pytest.approx(
        {"own_recall_1": 0.0, "own_recall_10": 0.5, "own_mrr": (1 / 2 + 1 / 12) / 2,
         "own_ndcg_10": gain / 2}
    )  # fmt: skip
    assert ranks_of(scores)[0].tolist() == [4, 5, 6, 1, 7, 2, 8, 3, 9, 10, 11, 12]


def test_late_interaction_is_the_mean_of_the_most_similar_real_tokens():
    rng = np.random.default_rng(0)
    queries, documents = (rng.normal(size=s).astype(np.float32) for s in ((2, 3, 4), (5, 6, 4)))
    masks = [np.arange(n) < np.array(sizes)[:, None] for n, sizes in
             ((3, [2, 3]), (6, [6, 1, 4, 2, 3]))]  # fmt: skip
    unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (queries, documents)]
    found = max_similarity(*map(jnp.asarray, (unit[0], masks[0], unit[1], masks[1])))
    for i, query in enumerate(unit[0]):
        for j, document in enumerate(unit[1]):
            near = query[masks[0][i]] @ document[masks[1][j]].T
            assert found[i, j] == pytest.approx(near.max(axis=1).mean(), abs=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ten documents, each with a word of its own, and queries that are another word for it."""
    path = tmp_path_factory.mktemp("searches")
    (path / "qrels").mkdir()
    texts = {"corpus": [f"all of it is about w{i}" for i in range(10)],
             "queries": [f"v{i} it" for i in range(10)]}  # fmt: skip
    for name, some in texts.items():
        rows = [json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(some)]
        (path / f"{name}.jsonl").write_text("\n".join(rows))
    for split in ("train", "validation", "test"):
        rows = [f"{i}\t{i}\t1" for i in range(10)]
        (path / "qrels" / f"{split}.tsv").write_text("\n".join(["a\tb\tc", *rows, "1\t3\t0", ""]))
    return path


def trainer_of(folder, tmp_path, **changes):
    config = config_of("retrieval", tmp_path)
    sizes = {"width": 16, "head_dim": 8, "feed_forward_width": 32, "dropout": 0.0}
    config.model.update(attention_dropout=0.0, **sizes)
    config.update(steps=60)
    config.optimizer.update(learning_rate=1e-2, warmup_steps=5)
    # To read two words together as a pair takes long: cross learns which documents are ever right.
    config.data.update(path=str(folder), max_queries=2 if changes.get("scoring") == "cross" else 0)
    config.batch.update(tokens_per_batch=160, max_length=12)
    config.task.update(**changes)
    return make_trainer(config, 1)


@pytest.mark.each_run("tokens")
@pytest.mark.parametrize("scoring", ["vectors", "tokens", "cross"])
def test_a_retriever_learns_what_words_do_not_tell(scoring, folder, tmp_path):
    trainer = trainer_of(folder, tmp_path, scoring=scoring, hard=0, negatives=3, candidates=10)
    task, state = trainer.task, trainer.init()
    batches = iter(task.train_batches())
    losses = []
    for _ in range(60):
        state, metrics = trainer.train_step(state, trainer.place(next(batches)))
        losses.append(float(metrics["loss"]))
    params = trainer.whole(state)
    found = task.score(params, "test", trainer.place, True).values
    assert np.mean(losses[-10:]) < 0.97 * np.mean(losses[:10])
    assert (found["recall_1"] > 0.6 or scoring == "cross") and found[
        "bm25_recall_1"
    ] == pytest.approx(0.1)
    # The ranking's scores are those of the loss, for one query and its document.
    batch = trainer.place(first_batch(task))
    read = jax.jit(task._embed)(params, batch)
    ranks = task.rank(params, [f"v{i} it" for i in range(10)], trainer.place)
    row, right = 0, int(batch["right"][0])
    if scoring == "cross":
        pairs = task.encode_pairs([f"v{right} it"] * 2, [right, int(batch["wrong"][0])])
        own, other = (float(x[0]) for x in task.outputs(params, pairs, {}, trainer.place))
        assert float(read["tokens"][0] - read["negative"][0]) == pytest.approx(
            own - other, abs=1e-4
        )
    else:
        near = task._near(read, batch, "pair")[row, row]
        assert float(near) == pytest.approx(ranks[right, right], abs=1e-5)


def test_all_documents_of_a_batch_compete_but_copies_and_padding(folder, tmp_path):
    trainer = trainer_of(folder, tmp_path, hard=4, negatives=2)
    task, params = trainer.task, trainer.whole(trainer.init())
    batch = list(task.eval_batches("test"))[-1]
    batch["wrong"] = np.where(
        np.arange(len(batch["wrong"])) == 1, batch["right"][0], batch["wrong"]
    )
    batch = trainer.place(batch)
    pairs = jax.jit(task.metrics)(params, batch)
    read, n = jax.jit(task._embed)(params, batch), len(batch["right"])
    vectors = jnp.concatenate([read["pair"], read["negative"]])
    numbers = np.concatenate([batch["right"], batch["wrong"]])
    real, nats = np.asarray(batch["tokens_mask"])[:, 0], []
    assert real.any() and not real.all()
    for i in np.flatnonzero(real):
        scores = task.config.scale * np.asarray(vectors @ read["tokens"][i])
        rivals = [j for j in range(2 * n) if real[j % n] and numbers[j] != numbers[i]]
        nats.append(np.log(np.exp(scores[[i, *rivals]] - scores[i]).sum()))
    assert float(pairs["loss"][0]) == pytest.approx(sum(nats), rel=1e-5)
    assert float(pairs["loss"][1]) == real.sum()
    whole, parts = (
        jax.jit(
            lambda p, b, k=k: loss_and_gradient(task.loss, p, b, jax.random.key(0), k, trainer.mesh)
        )(params, batch)
        for k in (1, 2)
    )
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5)


WRONG = [
    ("corpus.jsonl", '{"_id": "a"', "corpus.jsonl:1: not JSON"),
    ("corpus.jsonl", '{"_id": 1, "text": "x"}', 'corpus.jsonl:1: expected an object .* "_id"'),
    ("corpus.jsonl", '{"_id": "0"}\n{"_id": "0"}', 'corpus.jsonl:2: a second row has the "_id" 0'),
    ("qrels/test.tsv", "a\tb\tc\n0\t1", "test.tsv:2: expected query-id, corpus-id and a whole sc"),
    ("qrels/test.tsv", "a\tb\tc\n0\tx\t1", "test.tsv:2: corpus.jsonl has no x"),
    ("qrels/train.tsv", None, "qrels/train.tsv is missing"),
]


@pytest.mark.parametrize(("name", "content", "words"), WRONG)
def test_a_wrong_row_is_named_by_file_and_line(name, content, words, folder, tmp_path):
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text((folder / file).read_text())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(LabError, match=words):
        beir.read(tmp_path)


def test_entries_of_the_help_lead_to_pages_of_the_other_language(tmp_path):
    entry = '{{url:"{}/text/a/{}.html?DbPAR=W#bm_1", app:"W", text:"{}"}},\n'.format
    for folder, word in (("en-US", "Cut &amp; paste"), ("fr", "Couper")):
        (tmp_path / folder / "text" / "a").mkdir(parents=True)
        rows = entry(folder, "x", word), entry(folder, "y", word), entry(folder, "z", "gone")
        (tmp_path / folder / "bookmarks.js").write_text("var bookmarks = [\n" + "".join(rows) + "]")
        for name in "xy":
            page = f'<title>{folder} {name}</title><p id="par_1">One. <b>Two</b>.</p>'
            (tmp_path / folder / "text" / "a" / f"{name}.html").write_text(page)
    config, report = SearchesConfig(path=str(tmp_path), languages="fr-en"), Report()
    found = libreoffice_help.searches(config, report)
    assert found.parts == {"train": [("Couper", ["a/x.html", "a/y.html"])]}
    assert found.documents["a/y.html"] == ("en-US y", "One. Two.")
    assert report["without_page"] == 1


def test_questions_of_boolq_are_divided_from_their_passages(monkeypatch):
    items = [
        Item((f"Title -- P{i % 2}.\nQuestion: is {i}?\nAnswer:",), (" yes",), 0) for i in (0, 1, 2)
    ]
    monkeypatch.setattr(boolq, "published", lambda name: iter(items))
    found = boolq.searches(None, Report())
    assert [*found.documents.values()] == [("", "P0."), ("", "P1.")]
    assert found.parts["train"] == [("is 0?", ["P0."]), ("is 1?", ["P1."]), ("is 2?", ["P0."])]
