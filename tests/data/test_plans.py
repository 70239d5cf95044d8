"""What all plans of batches have in common: each is a pure function of (seed, step)."""

import json

import numpy as np
import pytest

from tests.data.test_shards import index_of
from transformer_lab.data.batching import BatchPlan
from transformer_lab.data.drawings import draw_plan
from transformer_lab.data.images.batches import train_plan
from transformer_lab.data.images.sources import Images
from transformer_lab.data.mixing import MixedPlan, PackedPairsPlan
from transformer_lab.data.packing import StreamPlan, pack, packed_plan
from transformer_lab.data.pipeline import Batches
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.sentence_pairs import PairPlan, Sentences
from transformer_lab.data.shard_plans import PackedShardPlan, ShardPlan, StreamShardPlan
from transformer_lab.data.word_windows import WindowConfig, Windows
from transformer_lab.errors import LabError

RNG = np.random.default_rng(0)
LENGTHS, TASKS = RNG.integers(1, 20, (150, 2)), np.repeat([0, 1, 2], [90, 40, 20])
SHAPES, RATES = [(8, 8), (16, 20), (20, 20)], np.array([0.5, 0.3, 0.2])
DOCUMENTS = Ragged.from_lists([RNG.integers(5, 30, n).tolist() for n in RNG.integers(1, 30, 40)])
PACKED = pack(DOCUMENTS, 8, 1, 2)
SENTENCES = Sentences.from_lists(
    [[RNG.integers(5, 30, n).tolist() for n in RNG.integers(1, 9, 5)] for _ in range(12)], 3
)
WINDOWS = Windows(DOCUMENTS, np.bincount(DOCUMENTS.values), WindowConfig(), False, 4)
PIXELS = np.zeros((10, 2, 2), np.uint8)
IMAGES = Images(PIXELS, np.arange(10), np.arange(10), channels=1)
PAIRS = index_of(LENGTHS, TASKS)
STORIES = index_of(DOCUMENTS.lengths()[:, None], np.zeros(len(DOCUMENTS), np.int64))
STORIES.lengths, STORIES.ends = DOCUMENTS.lengths()[:, None], DOCUMENTS.offsets + np.arange(41)
PLANS = {
    "lengths": lambda seed: BatchPlan(LENGTHS, SHAPES, 200, 2, seed),
    "stream": lambda seed: StreamPlan(200, 8, 3, seed),
    "stream after a prefix": lambda seed: StreamPlan(200, 8, 3, seed, True),
    "packed": lambda seed: packed_plan(PACKED, 3, seed),
    "packed after a prefix": lambda seed: packed_plan(PACKED, 3, seed, True),
    "mixture": lambda seed: MixedPlan(LENGTHS, TASKS, RATES, SHAPES, 200, 2, seed),
    "packed mixture": lambda seed: PackedPairsPlan(LENGTHS, TASKS, RATES, [(30, 30)], 240, 2, seed),
    "next sentences": lambda seed: PairPlan(SENTENCES, 16, 4, seed),
    "full sentences": lambda seed: PairPlan(SENTENCES, 16, 4, seed, next_sentence=False),
    "windows": lambda seed: WINDOWS.plan(64, seed),
    "drawings": lambda seed: draw_plan(10, 4, seed),
    "images": lambda seed: train_plan(IMAGES, 4, seed),
    "shards": lambda seed: ShardPlan(PAIRS, 99, 2, 1000, 2, seed),
    "mixed shards": lambda seed: ShardPlan(PAIRS, 99, 2, 1000, 2, seed, RATES),
    "stream of shards": lambda seed: StreamShardPlan(STORIES, 8, 8, seed, True),
    "packed shards": lambda seed: PackedShardPlan(STORIES, 8, 8, seed, True),
}


def ids(ids, shape):
    return {"ids": ids}


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
def test_batches_are_a_function_of_seed_and_step_and_go_on_where_they_were_stopped(make):
    plan, again, other = make(3), make(3), make(4)
    steps, count = range(3 * len(plan)), len(plan)
    forward = [(bucket, found.tolist()) for bucket, found in map(plan.__getitem__, steps)]
    backward = [(b, found.tolist()) for b, found in map(again.__getitem__, reversed(steps))]
    assert backward[::-1] == forward
    assert [(bucket, found.tolist()) for bucket, found in again] == forward[:count]
    first, second, third = (forward[i * count : (i + 1) * count] for i in range(3))
    others = [(bucket, found.tolist()) for bucket, found in other]
    assert first != second != third != first != others
    assert plan.fingerprint() == again.fingerprint() != other.fingerprint()
    with pytest.raises(IndexError):
        plan[-1]
    if plan.draws is not None:  # another at each step
        draws = [int(plan[step][1][0][..., -1].flat[0]) for step in (0, count)]
        assert draws[0] != draws[1]
    with Batches(plan, ids) as batches:
        for _ in range(count + 1):
            next(batches)
        state = json.loads(json.dumps(batches.get_state()))
    with Batches(again, ids) as batches:
        batches.restore(state)
        for step in range(count + 1, 2 * count + 1):
            np.testing.assert_array_equal(next(batches)["ids"], plan[step][1])
    with Batches(other, ids) as batches, pytest.raises(LabError, match="belongs to other batches"):
        batches.restore(state)


@pytest.mark.parametrize("name", ["lengths", "stream", "packed"])
def test_an_epoch_handed_out_cannot_be_changed(name):
    with pytest.raises(ValueError, match="read-only"):
        PLANS[name](0)[0][1][0] = 7
