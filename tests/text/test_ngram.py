"""The n-gram model against its formulas, written out with dictionaries."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.data.ragged import Ragged
from transformer_lab.errors import LabError
from transformer_lab.text.ngram import NGram

EOS, BOS, V = 1, 2, 8
corpora = st.lists(st.lists(st.integers(0, V - 2), max_size=9), min_size=1, max_size=7).filter(any)
contexts = st.lists(st.integers(0, V - 1), max_size=6)


def train(documents, order):
    return NGram.train(documents, order, V, BOS, EOS)


def discount(counts, count):
    n = Counter(counts)
    k = min(count, 3)
    if n[1] and n[k]:
        y = n[1] / (n[1] + 2 * n[2])
        value = k - (k + 1) * y * n[k + 1] / n[k]
        if 0 < value < k:
            return value
    return k / 2


def reference(documents, order):
    """p(w | h) as a function, for a history of any length."""
    grams = [Counter() for _ in range(order + 1)]  # by length, as they occur
    for document in documents:
        padded = [BOS] * (order - 1) + document + [EOS]
        for end in range(order, len(padded) + 1):
            for k in range(1, order + 1):
                grams[k][tuple(padded[end - k : end])] += 1
    tables = [None] + [Counter(gram[1:] for gram in grams[k + 1]) for k in range(1, order)]
    tables.append(grams[order])
    followers = defaultdict(dict)
    for table in tables[1:]:
        for gram, count in table.items():
            d = discount(table.values(), count)
            followers[gram[:-1]][gram[-1]] = count, d

    def probability(w, h, k):
        if k == 0:
            return 1 / V
        h = h[len(h) - (k - 1) :]
        seen = followers[h]
        lower = probability(w, h[1:], k - 1)
        if not seen:
            return lower
        total = sum(c for c, _ in seen.values())
        count, d = seen.get(w, (0, 0))
        return (count - d) / total + sum(d for _, d in seen.values()) / total * lower

    return lambda w, h: probability(w, (BOS,) * (order - 1) + tuple(h), order)


@pytest.mark.parametrize("order", range(1, 6))
@settings(max_examples=25, deadline=None)
@given(documents=corpora, context=contexts)
def test_the_distribution_is_that_of_the_formulas(order, documents, context):
    model = train(documents, order)
    expected = reference(documents, order)
    for h in (context, documents[0][:2], documents[-1]):
        found = model.distribution(h)
        np.testing.assert_allclose(found, [expected(w, h) for w in range(V)], rtol=1e-12)
        assert abs(found.sum() - 1) < 1e-12
        assert found.min() > 0


@settings(max_examples=40, deadline=None)
@given(corpora, contexts, st.integers(1, 5))
def test_a_text_of_n_tokens_scores_n_and_its_end_by_the_distribution_at_each_place(
    documents, ids, order
):
    model = train(documents, order)
    expected = [model.distribution(ids[:i])[w] for i, w in enumerate([*ids, EOS])]
    np.testing.assert_allclose(model.log_probs(ids), np.log(expected), rtol=1e-12)


def test_a_bigram_model_and_the_three_discounts_by_hand():
    documents = [[4, 5], [4, 5], [4, 6]]
    model = train(documents, 2)
    # Bigrams: 2 occur once, 2 twice, so D1 = 1/3 and D2 = 2 - 3 D1 / 2. Tokens: 4, 5 and 6 follow
    # one, eos follows two, so D1 = 3/5, but D2 = 1 (none follows three), and g = 2.8 / 5.
    assert model.distribution([7])[[0, 1, 5]] == pytest.approx([0.07, 0.27, 0.15])
    assert model.distribution([4])[5] == pytest.approx(0.5 / 3 + (1.5 + 1 / 3) / 3 * 0.15)
    assert model.sizes() == [4, 5]
    # The three discounts.
    ids = [token for token, count in enumerate([1, 0, 1, 1, 2, 2, 3, 3, 4]) for _ in range(count)]
    prob = NGram.train([ids], 1, 10, BOS, EOS).distribution([])
    given = (4 * 0.5 + 2 * 0.5 + 3 * 2) / 18 / 10
    kept = np.array([0.5, 0.5, 0.5, 0.5, 1.5, 1.5, 1, 1, 2, 0]) / 18
    np.testing.assert_allclose(prob, kept + given, rtol=1e-12)


def test_the_perplexity_of_a_periodic_text_tends_to_1():
    texts = [[4, 5, 6] * n for n in (10, 100, 1000)]
    excess = [np.exp(-train([text], 3).log_probs(text).mean()) - 1 for text in texts]
    assert excess[0] > 5 * excess[1] > 25 * excess[2] > 0
    assert excess[2] < 0.005


def test_documents_may_lie_in_arrays_or_come_once():
    documents = [[4, 5, 6], [], [5, 5]]
    expected = train(documents, 3).log_probs([4, 5, 5])
    arrays = [np.array(document, np.int64) for document in documents]
    for rows in (Ragged.from_lists(documents), iter(documents), arrays):
        assert train(rows, 3).log_probs(np.array([4, 5, 5], np.uint8)).tolist() == expected.tolist()


def test_samples_follow_the_distribution_and_the_seed():
    model = train([[4, 5, 6, 4, 4], [5, 6], [4]], 2)
    one, same, other = (model.sample([4], 30, seed) for seed in (0, 0, 1))
    assert one == same != other
    rng = np.random.default_rng(0)
    drawn = [model.sample([4], 1, rng, temperature=2.0) for _ in range(3000)]
    expected = model.distribution([4]) ** 0.5
    found = np.bincount([token for ids in drawn for token in ids], minlength=V)
    found[EOS] = drawn.count([])
    np.testing.assert_allclose(found / 3000, expected / expected.sum(), atol=0.03)


def test_temperature_0_is_greedy_and_eos_ends_the_text():
    model = train([[4, 5, 6]] * 20, 3)
    assert model.sample([], 10, 0, temperature=0.0) == [4, 5, 6]
    assert model.sample([4], 1, 0, temperature=1e-9) == [5]
    assert model.sample([4, 5, 6], 10, 0, temperature=0.0) == []
    model = train([[4, 5, 6]] * 20 + [[6, 5, 4]] * 20, 3)  # by the whole context
    assert [model.sample([w], 10, 0, temperature=0.0) for w in (4, 6)] == [[5, 6], [5, 4]]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda m: train([], 2), "corpus .* is empty"),
        (lambda m: train([[], []], 2), "corpus .* is empty"),
        (lambda m: train([[4]], 0), "order = 0 must be at least 1"),
        (lambda m: train([[4], [5, 8]], 2), "document 1 holds token id 8, outside .* of 8"),
        (lambda m: train([[4], [5, -1]], 2), "document 1 holds token id -1"),
        (lambda m: train(iter([[[4], [4, 5]]]), 2), "document 0: .* flat list of integers"),
        (lambda m: train(iter([4, 5]), 2), "document 0: .* flat list of integers"),
        (lambda m: NGram.train([[0]], 2, 2, BOS, EOS), "bos_id and eos_id holds token id 2"),
        (lambda m: m.log_probs([8]), "the document holds token id 8"),
        (lambda m: m.distribution([4, 5, 6, -3]), "the context holds token id -3"),
        (lambda m: m.sample([9, 4, 4], 1, 0), "the prompt holds token id 9"),
        (lambda m: m.sample([4], 1, 0, temperature=-1.0), "temperature = -1.0"),
        (lambda m: m.sample([4], 1, 0, temperature=float("nan")), "temperature = nan"),
    ],
)
def test_bad_input_is_refused(act, words):
    model = train([[4, 5]], 2)
    with pytest.raises(LabError, match=words):
        act(model)
