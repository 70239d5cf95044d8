"""Which tokens are hidden, and by what."""

import numpy as np
import pytest

from transformer_lab.data.masking import Masker, MaskingConfig
from transformer_lab.errors import LabError
from transformer_lab.text import TokenizerConfig, load, train

NAMES = ["[PAD]", "[SEP]", "[CLS]", "[UNK]", "[MASK]"]
WORDS = 4000


@pytest.fixture(scope="module")
def tokenizer():
    """Ids 5 to 4,004 are words, 4,005 to 6,004 pieces that continue one."""
    words = [f"w{i}" for i in range(WORDS)] + [f"##{i}" for i in range(WORDS // 2)]
    return load({"vocab.txt": "\n".join([*NAMES, *words]).encode()})


def some_rows(rows, length, seed=0, low=5, high=WORDS + 5):
    """Rows [CLS] A [SEP] B [SEP] of some length, an unknown word among them."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(low, high, (rows, length)).astype(np.int32)
    mask = np.arange(length) < rng.integers(length // 2, length + 1, rows)[:, None]
    ends = mask.sum(axis=1)
    tokens[:, 0], tokens[:, length // 3], tokens[:, 3] = 2, 1, 3
    tokens[np.arange(rows), ends - 1] = 1
    return {"tokens": np.where(mask, tokens, 0).astype(np.int32), "mask": mask}


def draws(rows, seed=0):
    return np.random.default_rng((seed, 9)).integers(2**63, size=rows)


def restored(batch):
    """The tokens with the labels back in their places."""
    tokens = batch["tokens"].copy()
    rows, _ = np.nonzero(batch["chosen"])
    tokens[rows, batch["places"][batch["chosen"]]] = batch["labels"][batch["chosen"]]
    return tokens


@pytest.mark.parametrize("whole_words", [False, True])
def test_case_53_of_100000_tokens_15_percent_are_chosen_and_80_10_10_of_those(
    tokenizer, whole_words
):
    high = WORDS + 1000 if whole_words else WORDS + 5  # a fifth of the pieces continue a word
    before = some_rows(1200, 128, high=high)
    after = Masker(tokenizer, MaskingConfig(whole_words=whole_words))(before, draws(1200))
    special = np.isin(before["tokens"], range(5))
    total = int((~special).sum())
    labels = after["labels"][after["chosen"]]
    rows, _ = np.nonzero(after["chosen"])
    now = after["tokens"][rows, after["places"][after["chosen"]]]
    assert total > 100_000 and abs(len(labels) / total - 0.15) < 0.0034
    shares = np.array([now == 4, (now != 4) & (now != labels), now == labels]).mean(axis=1)
    assert (np.abs(shares - [0.8, 0.1, 0.1]) < [0.01, 0.0075, 0.0075]).all()
    # Never a special token or padding is chosen, and no random token is special.
    assert labels.min() > 4
    np.testing.assert_array_equal(after["tokens"][special], before["tokens"][special])
    assert (np.isin(now, range(5)) == (now == 4)).all()
    np.testing.assert_array_equal(restored(after), before["tokens"])


def test_a_row_has_its_share_rounded_up_or_down_and_all_places_alike(tokenizer):
    tokens = np.full((4000, 12), 7, np.int32)
    tokens[:, [0, 11]] = 2, 1
    batch = {"tokens": tokens, "mask": np.ones_like(tokens, bool)}
    after = Masker(tokenizer, MaskingConfig())(batch, draws(4000))
    counts = after["chosen"].sum(axis=1)
    assert set(counts.tolist()) == {1, 2} and abs(counts.mean() - 1.5) < 5 * 0.5 / 4000**0.5
    hits = np.bincount(after["places"][after["chosen"]], minlength=12)
    assert hits[[0, 11]].tolist() == [0, 0]
    assert np.abs(hits[1:11] - 600).max() < 5 * (600 * 0.85) ** 0.5
    assert (after["places"][:, 1] > after["places"][:, 0])[counts == 2].all()
    empty = ~after["chosen"]
    assert not after["places"][empty].any() and not after["labels"][empty].any()


def test_random_tokens_are_drawn_from_all_that_are_not_special(tokenizer):
    config = MaskingConfig(rate=1.0, mask_share=0.0, random_share=1.0)
    tokens = np.full((400, 130), 7, np.int32)
    after = Masker(tokenizer, config)({"tokens": tokens, "mask": tokens > 0}, draws(400))
    assert after["chosen"].all()
    assert after["tokens"].min() == 5 and after["tokens"].max() == tokenizer.vocab_size - 1
    # 52,000 draws out of 6,000: e^-8.7 of them, one, are expected not to come.
    assert len(np.unique(after["tokens"])) > tokenizer.vocab_size - 5 - 10


def test_a_row_is_hidden_alike_in_any_batch_and_the_input_is_left_as_it_was(tokenizer):
    masker, before, keys = Masker(tokenizer, MaskingConfig()), some_rows(8, 64), draws(8)
    copy = before["tokens"].copy()
    whole = masker({**before, "types": before["tokens"]}, keys)
    assert whole["types"] is before["tokens"] and (before["tokens"] == copy).all()
    part = masker({name: array[[5, 2]] for name, array in before.items()}, keys[[5, 2]])
    for name, array in part.items():
        np.testing.assert_array_equal(array, whole[name][[5, 2]])
    other = masker(before, draws(8, seed=1))
    assert (other["places"] != whole["places"]).any(axis=1).all()


def test_rows_without_a_token_to_hide_stay_as_they_are(tokenizer):
    tokens = np.array([[0, 0, 0, 0, 0], [2, 1, 0, 0, 0], [2, 3, 4, 1, 0]], np.int32)
    batch = {"tokens": tokens, "mask": tokens > 0}
    for whole_words in (False, True):
        masker = Masker(tokenizer, MaskingConfig(rate=1.0, whole_words=whole_words))
        after = masker(batch, np.array([-1, 5, 6]))
        assert (after["tokens"] == tokens).all() and not after["chosen"].any()


def test_a_word_is_chosen_with_all_its_pieces(tokenizer):
    before = some_rows(300, 96, high=WORDS + 2000)
    after = Masker(tokenizer, MaskingConfig(whole_words=True))(before, draws(300))
    several = 0
    for tokens, places, chosen in zip(
        before["tokens"], after["places"], after["chosen"], strict=True
    ):
        picked, words = set(places[chosen].tolist()), []
        for place, token in enumerate(tokens.tolist()):
            if token >= 5:
                continues = token >= WORDS + 5 and words and words[-1][-1] == place - 1
                words[-1].append(place) if continues else words.append([place])
        for word in words:
            assert len(picked & set(word)) in (0, len(word))
            several += len(word) > 1 and word[0] in picked
    assert several > 500


def test_words_that_would_overflow_the_places_are_not_chosen(tokenizer):
    tokens = np.full((50, 25), WORDS + 9, np.int32)  # words of 7 pieces
    tokens[:, [1, 8, 15]] = 7
    tokens[:, [0, 22]], tokens[:, 23:] = [2, 1], 0
    masker = Masker(tokenizer, MaskingConfig(rate=0.4, whole_words=True))
    assert masker.places(25) == 10 + 5
    after = masker({"tokens": tokens, "mask": tokens > 0}, draws(50))
    assert set(after["chosen"].sum(axis=1).tolist()) == {7, 14}  # of 1.2 words, 1 or 2
    full = Masker(tokenizer, MaskingConfig(rate=0.4, whole_words=True))
    full.places = lambda length: 8
    assert set(full({"tokens": tokens, "mask": tokens > 0}, draws(50))["chosen"].sum(axis=1)) == {7}


def test_shares_and_tokenizers_that_cannot_be_are_refused(tokenizer):
    for values, message in (
        ({"rate": 0.0}, "rate = 0.0 must be above 0"),
        ({"rate": 1.1}, "rate = 1.1 must be above 0 and at most 1"),
        ({"mask_share": 0.95}, "mask_share = 0.95 and random_share = 0.1 must be shares"),
        ({"random_share": -0.1}, "random_share = -0.1 must be shares"),
    ):
        with pytest.raises(LabError, match=message):
            MaskingConfig(**values)
    with pytest.raises(LabError, match="a byte tokenizer has no mask token"):
        Masker(train(TokenizerConfig(kind="byte"), []), MaskingConfig())
    bare = load({"vocab.txt": "\n".join(NAMES).encode()})
    with pytest.raises(LabError, match="special tokens only"):
        Masker(bare, MaskingConfig())
    assert [Masker(tokenizer, MaskingConfig()).places(n) for n in (12, 20, 128)] == [2, 3, 20]
