"""Search against brute force and a plain reference."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.toy import EOS, PAD, Toy, beam, brute_force, run
from transformer_lab.decoding import Beams, DecodeConfig, Single
from transformer_lab.errors import LabError


def padded(ids: tuple[int, ...], length: int) -> list[int]:
    return [*ids, *[PAD] * (length - len(ids))]


@pytest.mark.parametrize(
    ("length_penalty", "alpha"),
    [
        ("gnmt", 0.6),
        ("gnmt", -1.0),
        ("power", 1.0),
        ("power", 3.0),
        ("power", -0.7),
    ],
)
def test_a_beam_as_wide_as_all_sequences_equals_brute_force(length_penalty, alpha):
    toy = Toy(seed=3, rows=12, vocab=3)
    config = DecodeConfig(beam_size=31, n_best=6, length_penalty=length_penalty, alpha=alpha)
    found = toy.run(Beams, config, length=4)
    for row in range(toy.rows):
        best = brute_force(toy, row, config, longest=4)
        assert len(best) == 31
        for n, (score, ids) in enumerate(best[:6]):
            assert found.tokens[row, n].tolist() == padded(ids, 4)
            assert found.lengths[row, n] == len(ids)
            np.testing.assert_allclose(found.scores[row, n], score, 1e-5, 1e-6)
            np.testing.assert_allclose(found.log_probs[row, n], toy.log_prob(row, ids), 1e-5, 1e-6)


@pytest.mark.parametrize("search", [Beams, Single])
def test_a_forced_first_token_costs_nothing_and_the_best_continuation_follows(search):
    toy = Toy(seed=3, rows=8, vocab=3)
    config = DecodeConfig(beam_size=31, alpha=0.0, first_token=2)
    found = toy.run(search, config, length=4)
    for row in range(toy.rows):
        free = toy.log_prob(row, (2,))
        scored = brute_force(toy, row, config, longest=4)
        wanted = [(score - free, ids) for score, ids in scored if ids[0] == 2]
        ids = tuple(found.tokens[row, 0, : found.lengths[row, 0]].tolist())
        score = dict((ids, score) for score, ids in wanted)[ids]
        np.testing.assert_allclose(found.log_probs[row, 0], score, 1e-5, 1e-6)
        assert search is Single or ids == wanted[0][1]
    with pytest.raises(LabError, match="token 9 is outside"):
        toy.run(search, DecodeConfig(first_token=9), length=4)


def test_a_beam_wider_than_all_sequences_marks_the_missing_ones():
    config = DecodeConfig(beam_size=9, n_best=9)
    found = Toy(seed=0, rows=2, vocab=3).run(Beams, config, length=2)
    assert (found.lengths > 0).tolist() == [[True] * 7 + [False] * 2] * 2  # EOS, and 2 x 3 others
    assert (found.scores[:, 7:] == -np.inf).all() and np.isfinite(found.scores[:, :7]).all()


@pytest.mark.parametrize(
    ("early_stopping", "alpha"),
    [("exact", 1.0), ("exact", -1.0), ("heuristic", 1.0), ("heuristic", -1.0), ("first", 1.0)],
)
def test_beam_equals_a_plain_reference(early_stopping, alpha):
    """The exact rule must equal running to the end; the others are as Hugging Face stops."""
    toy = Toy(seed=5, rows=16, vocab=7, eos_bias=1.5)
    stop, count = (early_stopping, 3) if early_stopping != "exact" else ("never", 2)
    config = DecodeConfig(
        beam_size=3,
        n_best=count,
        length_penalty="power",
        alpha=alpha,
        early_stopping=early_stopping,
    )
    found = toy.run(Beams, config, length=9)
    took = set()
    for row in range(toy.rows):
        finished, steps = beam(toy, row, config, 9, stop)
        took.add(steps)
        assert found.tokens[row].tolist() == [padded(ids, 9) for _, ids in finished[:count]]
        np.testing.assert_allclose(found.scores[row], [s for s, _ in finished[:count]], rtol=1e-5)
    assert early_stopping == "exact" or len(took) > 2  # rows do stop, each at its own time


def test_width_1_equals_greedy_and_greedy_takes_the_likeliest():
    toy = Toy(seed=2, rows=12, vocab=6, eos_bias=1.0)
    # A penalty under which beam search would rather go on than end.
    config = DecodeConfig(length_penalty="power", alpha=3.0)
    one, two = toy.run(Single, config, 7), toy.run(Beams, config, 7)
    for name in ("tokens", "lengths"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    for name in ("log_probs", "scores"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-6)
    for row in range(toy.rows):
        ids: tuple[int, ...] = ()
        while len(ids) < 7 and EOS not in ids:
            ids = (*ids, int(toy.log_probs(row, ids).argmax()))
        assert one.tokens[row, 0].tolist() == padded(ids, 7)
        np.testing.assert_allclose(one.log_probs[row, 0], toy.log_prob(row, ids), 1e-5, 1e-6)
        np.testing.assert_allclose(one.scores[row, 0] * len(ids) ** 3, one.log_probs[row, 0], 1e-5)
    assert len(set(one.lengths[:, 0].tolist())) > 3


def scripted(script: list[list[int]]):
    """A step whose rows take the scripted tokens with probability one half, any other of 4 less."""
    script = jnp.asarray(script)

    def step(tokens, cache):
        # Log-probabilities: 1/2 for the scripted token, 1/6 for the three others.
        wanted = script[:, cache["index"]]
        chosen = jnp.arange(4) == wanted[:, None]
        logits = jnp.log(jnp.where(chosen, 0.5, 1 / 6))[:, None]
        return logits, {**cache, "index": cache["index"] + 1}

    cache = {"index": jnp.zeros((), jnp.int32), "layers": {"x": jnp.zeros(len(script))}}
    return step, cache


@pytest.mark.parametrize(("search", "width"), [(Single, 1), (Beams, 2)])
def test_rows_that_end_early_are_padded_and_nothing_after_the_end_is_scored(search, width):
    step, cache = scripted([[2, EOS, 3, 3], [EOS, 2, 2, 2], [3, 3, 3, 3]])
    config = DecodeConfig(beam_size=width, length_penalty="power", alpha=0.0)
    found = run(search, step, cache, jnp.full(3, 2), config, 4)
    assert found.tokens[:, 0].tolist() == [[2, EOS, PAD, PAD], [EOS, PAD, PAD, PAD], [3, 3, 3, 3]]
    assert found.lengths[:, 0].tolist() == [2, 1, 4]
    np.testing.assert_allclose(found.log_probs[:, 0], np.log(0.5) * np.array([2, 1, 4]), rtol=1e-6)


def test_equal_scores_go_to_the_lower_token():
    def step(tokens, cache):
        return jnp.zeros((2, 1, 5)), cache

    cache = {"index": jnp.zeros((), jnp.int32), "layers": {"x": jnp.zeros(2)}}
    config = DecodeConfig(beam_size=2, n_best=2, alpha=0.0, banned_tokens=(EOS,))
    found = run(Beams, step, cache, jnp.zeros(2, int), config, 3)
    assert found.tokens.tolist() == [[[0, 0, 0], [0, 0, 2]]] * 2
    found = run(Single, step, cache, jnp.zeros(2, int), config, 3)
    assert found.tokens.tolist() == [[[0, 0, 0]]] * 2


@pytest.mark.parametrize(("search", "width"), [(Single, 1), (Beams, 3)])
def test_the_loop_ends_with_its_last_real_row(search, width):
    toy = Toy(seed=2, rows=4, vocab=6, eos_bias=3.0)
    # The beam keeps two rows: both would end long before the limit, filler rows never matter.
    config = DecodeConfig(beam_size=width, length_penalty="power", alpha=0.0)
    real = jnp.array([True, False, True, False])
    found = toy.run(search, config, 12, toy.watched_step, real)
    whole = toy.run(search, config, 12)
    np.testing.assert_array_equal(found.tokens[::2], whole.tokens[::2])
    assert (found.lengths[1::2] == 0).all() and (found.tokens[1::2] == PAD).all()
    assert max(toy.steps) + 1 >= found.lengths.max()
    assert max(toy.steps) + 1 < 12
    toy.steps.clear()
    toy.run(search, config, 12, toy.watched_step, jnp.zeros(4, bool))
    assert toy.steps == set()


def test_n_best_are_sorted_and_distinct():
    toy = Toy(seed=7, rows=10, vocab=9, eos_bias=0.5)
    found = toy.run(Beams, DecodeConfig(beam_size=5, n_best=5), 8)
    assert (np.diff(found.scores, axis=1) <= 0).all()
    for row in found.tokens:
        assert len({tuple(ids) for ids in row.tolist()}) == 5


@pytest.mark.parametrize(("search", "width"), [(Single, 1), (Beams, 3)])
def test_banned_tokens_never_come_and_the_others_keep_their_probability(search, width):
    toy = Toy(seed=4, rows=6, vocab=6)
    config = DecodeConfig(beam_size=width, alpha=0.0, banned_tokens=(0, 3))
    found = toy.run(search, config, 6)
    assert not np.isin(found.tokens, 3).any()
    for row in range(toy.rows):
        ids = tuple(found.tokens[row, 0, : found.lengths[row, 0]].tolist())
        assert PAD not in ids
        np.testing.assert_allclose(found.log_probs[row, 0], toy.log_prob(row, ids), 1e-5, 1e-6)


def repeats(n, ids):
    """Whether some n tokens come twice."""
    grams = [ids[i : i + n] for i in range(len(ids) - n + 1)]
    return len(set(grams)) < len(grams)


def ends_early(least, ids):
    return EOS in ids[:least]


@pytest.mark.parametrize(
    ("setting", "number", "forbidden"),
    [
        *(("no_repeat_ngram", n, repeats) for n in (1, 2, 3)),
        *(("min_new_tokens", least, ends_early) for least in (0, 2, 4, 9)),
    ],
)
def test_under_a_rule_the_best_of_what_it_allows_is_found(setting, number, forbidden):
    """Brute force over all sequences: those that repeat no n tokens, those that are long enough, of
    which those at the limit need no end token. Greedy takes the likeliest token that is allowed."""
    seed, bias = {"no_repeat_ngram": (6, -3.0), "min_new_tokens": (7, 1.0)}[setting]
    toy, longest = Toy(seed=seed, rows=8, vocab=3, eos_bias=bias), 5
    config = DecodeConfig(beam_size=63, n_best=2, alpha=0.5, **{setting: number})
    found, fast = (toy.run(search, config, longest) for search in (Beams, Single))
    changed = 0
    for row in range(toy.rows):
        scored = brute_force(toy, row, config, longest)
        changed += forbidden(number, scored[0][1])
        wanted = [(score, ids) for score, ids in scored if not forbidden(number, ids)]
        for place, (score, ids) in enumerate(wanted[:2]):
            assert found.tokens[row, place].tolist() == padded(ids, longest)
            np.testing.assert_allclose(found.scores[row, place], score, 1e-5, 1e-6)
        ids = ()
        while EOS not in ids and len(ids) < longest:
            order = np.argsort(-toy.log_probs(row, ids)).tolist()
            ids += (next(token for token in order if not forbidden(number, (*ids, token))),)
        assert fast.tokens[row, 0].tolist() == padded(ids, longest)
    assert bool(changed) == bool(number), "without the rule some row's best breaks it"


@pytest.mark.parametrize(("search", "width"), [(Single, 1), (Beams, 2)])
def test_renormalised_and_forced_to_end(search, width):
    """The banned token's share goes to the rest, and the last token is the end at no cost."""
    step, cache = scripted([[2, 3, 2]])
    config = DecodeConfig(
        beam_size=width, alpha=0.0, banned_tokens=(0,), renormalize=True, force_eos=True
    )
    found = run(search, step, cache, jnp.full(1, 2), config, 3)
    assert found.tokens[0, 0].tolist() == [2, 3, EOS]
    np.testing.assert_allclose(found.log_probs[0, 0], 2 * np.log(0.5 / (5 / 6)), rtol=1e-6)


def test_tokens_outside_the_vocabulary_are_refused():
    toy = Toy(seed=0, rows=1, vocab=4)
    with pytest.raises(LabError, match="token 9 is outside the model's vocabulary of 4"):
        toy.run(Single, DecodeConfig(banned_tokens=(9,)), 3)
