"""What the base class carries holds for each task, on data of a few words or pixels."""

import ast
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.examples import TASKS, config_of
from tests.tiny import first_batch, make_trainer, tiny_config
from transformer_lab import text
from transformer_lab.errors import LabError
from transformer_lab.kinds import kinds
from transformer_lab.tasks import abilities, offers
from transformer_lab.tasks.base import stand_in
from transformer_lab.tasks.bucketed import Bucketed
from transformer_lab.text.tokenizer import TokenizerConfig
from transformer_lab.training import runs
from transformer_lab.training.config import resolve
from transformer_lab.training.mesh import make_mesh

NAMES = [*TASKS, "contrastive", "contrastive_sound"]
VARIANTS = {
    "packed prefix": ("language_modeling", {"task.layout": "packed", "model.mask": "prefix"}),
    "packed mixture": ("text_to_text", {"batch.packed": (16, 16)}),
    "mixed images": ("image_classification", {"augment.mixup": 0.2}),
    "bag of words": ("word_vectors", {"task.cbow": True}),
}

REFUSED = dict.fromkeys(
    ("language_modeling", "image_modeling", "sequence_targets"), ("encoder", "vision")
)
REFUSED |= dict.fromkeys(("masked_language_modeling", "question_answering"), ("recurrent",))

WRITERS = {  # which runs the commands for texts and pictures take
    abilities.Continues: {"language_modeling", "sft", "preferences", "grpo", "ppo"},
    abilities.Translates: {"translation", "text_to_text"},
    abilities.Draws: {"diffusion", "picture_codes"},
    abilities.Transcribes: {"transcription", "ctc"},
}

LENGTHS = "must be within model.max_length"
WRONG = [  # a task, settings that do not go together, and words of the refusal
    ("language_modeling", {"batch.length": 17}, "batch.length = 17.* within model.max_length = 16"),
    ("language_modeling", {"task.eval_length": 17}, f"task.eval_length = 17.*{LENGTHS} = 16"),
    ("language_modeling", {"task.other_lengths": (8, 0)}, "task.other_lengths = .* at least 1"),
    ("language_modeling", {"batch.rows": 0}, "batch.rows = 0 must be at least 1"),
    ("language_modeling", {"task.layout": "packd"}, '"packd" is unknown .did you mean "packed"'),
    ("language_modeling", {"task.eval_stride": -1}, "task.eval_stride = -1 must be at least 0"),
    ("language_modeling", {"data.source": "pattern"}, 'did you mean "patterns"'),
    ("image_modeling", {"task.layout": "stream"}, 'task.layout = "packed"'),
    ("image_modeling", {"task.levels": 40}, "task.levels = 40 is not within 2 and 36"),
    ("image_modeling", {"task.shrink": 0}, "task.shrink"),
    ("image_modeling", {"task.shrink": 3}, "task.shrink = 3 does not divide images of 2 x 2"),
    ("image_modeling", {"batch.length": 4}, "has 4 pixels: batch.length = 4 .* must be 5 or more"),
    ("image_modeling", {"task.sample_prompt": 4}, "task.sample_prompt less"),
    ("sequence_targets", {"data.length": 9}, f"data.length = 9 and task.other_lengths .*{LENGTHS}"),
    ("sequence_targets", {"task.other_lengths": (9,)}, rf"task.other_lengths = \(9,\) {LENGTHS}"),
    ("sequence_targets", {"task.other_lengths": (0,)}, "must be at least 1 each"),
    ("sequence_targets", {"batch.rows": 0}, "batch.rows = 0 must be at least 1"),
    ("sequence_targets", {"model.vocab_size": 4}, "model.vocab_size = 4, but the data has 8 piec"),
    ("contrastive", {"task.loss": "softmx"}, 'did you mean "softmax"'),
    ("contrastive", {"task.loss": "sigmoid"}, "model.bias"),
    ("contrastive", {"task.mean": (0.5,)}, "task.mean"),
    ("text_to_text", {"batch.packed": (16,)}, "give the tokens of a source and of a target row"),
    ("text_to_text", {"batch.packed": (16, 17)}, "exceeds model.max_length = 16"),
    ("text_to_text", {"batch.packed": (16, 3)}, "no example of the task"),
    ("forecasting", {"task.quantiles": (0.1, 0.9)}, "must rise within 0 and 1 and hold 0.5"),
    ("forecasting", {"task.quantiles": (0.9, 0.5)}, "must rise within 0 and 1 and hold 0.5"),
    ("forecasting", {"model.covariates": 2}, "model.covariates must be 8"),
    ("forecasting", {"model.patch": 2}, "model.context = 1 is not a multiple of model.patch = 2"),
    ("forecasting", {"data.horizon": 9}, "no series longer than its horizon"),
    ("forecasting", {"data.validation_origins": 9}, "no series is left to train on"),
    ("forecasting", {"data.frequency": "montly"}, 'did you mean "monthly"'),
    ("image_classification", {"task.label_smoothing": 1.5}, "task.label_smoothing = 1.5"),
    ("image_classification", {"task.mean": (0.5,)}, r"task.mean = \(0.5,\) and task.std = \(\)"),
    ("classification", {"task.positive_label": "ys"}, '^task.positive_label = "ys" is unknown \\('),
    ("classification", {"task.regression": True, "task.class_weights": "balanced"},
     "^task.class_weights is of classes"),
]  # fmt: skip


@pytest.mark.parametrize("ability", WRITERS, ids=lambda x: x.__name__)
def test_what_a_run_can_write_follows_from_its_tasks_methods(ability):
    every = kinds("transformer_lab.tasks", "build")
    assert {kind for kind in every if offers(kind, ability)} == WRITERS[ability]


@pytest.mark.parametrize(("name", "changes", "words"), WRONG)
def test_settings_that_do_not_go_together_are_refused_in_one_line(name, changes, words, tmp_path):
    config = config_of(name, tmp_path)
    config.update_from_flattened_dict(changes)
    with pytest.raises(LabError, match=words) as info:
        _ = task_of(config).train_plan
    assert "\n" not in str(info.value)


def task_of(config, assets=None):
    resolved = resolve(config)
    return runs.build_task(resolved, assets, make_mesh(resolved.run.mesh, 1))


def without_data(config):
    resolved = resolve(config)
    return task_of(config, stand_in(resolved.model, resolved.sections))


@pytest.fixture(scope="module", params=NAMES)
def case(request, tmp_path_factory):
    """A task's name, config and task, built once for all tests of it."""
    config = config_of(request.param, tmp_path_factory.mktemp("data"))
    return SimpleNamespace(name=request.param, config=config, task=task_of(config))


def test_the_worked_batch_of_its_docstring_is_the_first_of_its_test_split(case):
    said = dict(re.findall(r"^ +(\w+) +(\[.*\])$", type(case.task).__doc__, re.M))
    batch = next(iter(case.task.eval_batches("test")))
    assert said.keys() == batch.keys()
    for name, values in said.items():
        values = ast.literal_eval(values)
        assert batch[name][: len(values)].tolist() == values, name


def test_the_fingerprint_is_that_of_the_data(case, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    again, other = (task_of(config_of(case.name, tmp_path / n, n == "b")) for n in "ab")
    assert again.fingerprint() == case.task.fingerprint() != other.fingerprint()


def test_a_checkpoints_files_build_the_same_task(case):
    assets = case.task.assets()
    again = task_of(case.config, assets)
    assert again.assets() == assets and again.model_config == case.task.model_config
    assert list(again.labels) == list(case.task.labels)
    batches = (next(iter(task.eval_batches("validation"))) for task in (case.task, again))
    jax.tree.map(np.testing.assert_array_equal, *batches)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluation_holds_each_example_once(case, split):
    task, rows = case.task, case.task.examples(split)
    sizes = [task.sizes(batch) for batch in task.eval_batches(split)]
    if case.name in ("language_modeling", "image_modeling"):  # a token and an end for each
        expected = {"tokens": sum(len(task.tokenizer.encode(row)) + 1 for row in rows)}
    elif case.name == "word_vectors":  # each word but the last finds the next, and is found
        words = sum(len(task.tokenizer.encode(row)) for row in rows)
        expected = {"pairs": 2 * (words - len(rows))}
    else:
        expected = {"examples": len(rows)}
    for name, count in expected.items():
        assert sum(size[name] for size in sizes) == count > 0
    if isinstance(task, Bucketed) and case.name != "masked_language_modeling":
        fields, _ = task.encode_split(split)
        for name, encoded in fields.items():
            found = [
                row[mask].tolist()
                for batch in task.eval_batches(split)
                for row, mask in zip(batch[name], batch[f"{name}_mask"], strict=True)
                if mask.any()
            ]
            assert sorted(found) == sorted(ids.tolist() for ids in encoded)


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_the_batch_stated_without_data_is_that_of_the_data(name, tmp_path):
    task, changes = VARIANTS.get(name, (name, {}))
    config = config_of(task, tmp_path)
    config.update_from_flattened_dict(changes)
    stated, real = without_data(config).abstract_batch(), first_batch(task_of(config))
    assert stated.keys() == real.keys()
    for key, array in real.items():
        assert stated[key].dtype == array.dtype, key
        assert len(stated[key].shape) == array.ndim, key
    if "tokens_per_batch" not in config.batch:  # there shapes follow the data's lengths
        of_data = {"image", "label"} if task == "image_classification" else set()
        assert all(stated[key].shape == real[key].shape for key in real.keys() - of_data)


def test_batches_are_a_function_of_seed_and_step(case):
    with case.task.train_batches() as ahead, case.task.train_batches() as behind:
        first, second = next(ahead), next(ahead)
        states = [next(behind) and behind.get_state() for _ in range(3)]
        behind.restore(states[0])
        jax.tree.map(np.testing.assert_array_equal, next(behind), second)
        ahead.restore({**states[0], "next_index": 0})
        jax.tree.map(np.testing.assert_array_equal, next(ahead), first)


def test_a_vocabulary_may_be_larger_than_the_tokenizers_and_not_smaller(case):
    inner = case.name in ("contrastive", "contrastive_sound", "picture_codes")
    path = "model.text.vocab_size" if inner else "model.vocab_size"
    if case.name in ("image_classification", "detection", "image_prediction", "forecasting"):
        pytest.skip("images and series have no vocabulary")

    def build(size):
        config = case.config.copy_and_resolve_references()
        config.update_from_flattened_dict({path: size})
        return task_of(config)

    sizes = lambda task: getattr(task.model_config, "text", task.model_config).vocab_size  # noqa: E731
    pieces = case.task.tokenizer.vocab_size if case.task.tokenizer else case.task.vocabulary
    assert sizes(case.task) == pieces < sizes(build(500)) == 500
    with pytest.raises(LabError, match="^model.vocab_size = 3, but the (tokenizer|data) has"):
        build(3)


def test_a_mesh_that_does_not_divide_the_rows_and_another_kind_of_model_are_refused(case):
    resolved = resolve(case.config)
    with pytest.raises(LabError, match=r"^batch.rows(_multiple)? = 2 is not divided by .* = 4"):
        type(case.task)(resolved.model_kind, resolved.model, resolved.sections, None, 0, 4)
    for kind in REFUSED.get(case.name, ("decoder",)):
        with pytest.raises(LabError, match=f'^model.kind = "{kind}" does not go with this task'):
            type(case.task)(kind, None, resolved.sections)


@pytest.mark.each_run("image_classification", "translation", "language_modeling")
def test_parameters_are_those_that_the_sums_take(case):
    task = case.task

    @jax.jit  # one compilation
    def run(batch, held_out):
        params = task.init(jax.random.key(0))
        loss = task.loss(params, batch, jax.random.key(1))["loss"]
        return params, {"loss in training": loss, **task.metrics(params, held_out)}

    params, sums = run(first_batch(task), next(iter(task.eval_batches("test"))))
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda x: x.shape, shapes)
    assert all(np.isfinite(pair).all() and pair[1] > 0 for pair in sums.values())


def test_the_report_counts_the_data_and_says_when_little_is_left_to_train_on(case, monkeypatch):
    for split, count in (("train", 5), ("test", 12345)):
        monkeypatch.setitem(case.task.data.report, split, count)
    lines = case.task.report()
    assert lines[case.name == "text_to_text"].startswith(f"{case.task.COUNTED}: ")
    remark = (
        "the test split has 12,345 examples, more than the 5 to train on: lower "
        r"config.data.test_(size|share|origins), unless the split is your own"
    )
    assert sum(bool(re.fullmatch(remark, line)) for line in lines) == 1


def test_buckets_state_the_longest_examples():
    config = tiny_config(batch__max_length=12)
    stated, task = without_data(config).abstract_batch(), make_trainer(config, 1).task
    assert stated["source"].shape == stated["target"].shape == (8, 12)
    assert task.slots() == (320, 8)  # 320 // (12 + 12) // 8 * 8


def test_a_tokenizer_that_stands_in_has_pieces_and_no_text():
    found = text.StandIn.train(TokenizerConfig(kind="unigram", vocab_size=500, extra_ids=7))
    assert found.vocab_size == 507 and len(found.sentinels) == 7 and found.mask_id is None
    again = text.load(found.to_files())
    assert (type(again), again.vocab_size, again.config) == (text.StandIn, 507, found.config)
    with pytest.raises(LabError, match="stands for one that is not trained yet"):
        again.encode("a")
    assert text.StandIn.train(TokenizerConfig(kind="byte")).vocab_size == 260


def test_the_models_own_table_bounds_the_stand_ins_pieces(tmp_path):
    config = config_of("language_modeling", tmp_path)
    config.tokenizer.vocab_size, config.model.vocab_size = 4000, 300
    task = without_data(config)
    assert task.tokenizer.vocab_size == task.model_config.vocab_size == 300
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    assert shapes["embedding"]["embedding"].shape == (300, 8)
