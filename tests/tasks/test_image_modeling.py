"""Images as texts: what a batch holds, what completions keep, what likelihoods add up to."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests import tiny
from tests.tiny import first_batch, make_trainer, read_metrics, run_alone, start
from transformer_lab.errors import LabError
from transformer_lab.tasks.image_modeling import ImageModelingConfig


def config_of(**changes):
    """Digits of 4 x 4 pixels; a double underscore in a key of `changes` is a dot."""
    values = {
        "steps": 4, "save_every": 2, "data.source": "digits", "batch.rows": 8, "batch.length": 17,
        "model.max_length": 17, "model.dropout": 0.0,
        "optimizer.learning_rate": 1e-2, "optimizer.warmup_steps": 2, "task.samples": 3,
        "task.completions": 2, "decode.temperature": 1.0,
    }  # fmt: skip
    return tiny.config_of("decoder", "image_modeling", tiny.STACK, tiny.RUN, values, **changes)


@pytest.fixture(scope="module")
def trainer():
    return make_trainer(config_of(), 1)


@pytest.fixture(scope="module")
def params(trainer):
    return start(trainer).params


def test_a_row_is_one_image_from_its_start_to_its_end(trainer):
    task = trainer.task
    batch = next(iter(task.eval_batches("test")))
    for row, image in enumerate(task.images["test"][:8]):
        ids = (4 + image.astype(int)).ravel().tolist()
        assert batch["tokens"][row].tolist() == [task.tokenizer.bos_id, *ids]
        assert batch["targets"][row].tolist() == [*ids, task.tokenizer.eos_id]
    rows = first_batch(task)
    assert rows["mask"].all() and (rows["tokens"][:, 0] == task.tokenizer.bos_id).all()
    assert task.model_config.vocab_size == 4 + 16


def test_the_likelihood_of_an_image_is_the_sum_of_its_steps(trainer, params):
    task = trainer.task
    image = task.data.test[0]
    ids = [task.start_id, *task.tokenizer.encode(image)]
    ((nats, count),) = task.score_texts(params, [image], trainer.place)
    assert count == 16
    variables, model, total = {"params": params}, task.model, 0.0
    step = jax.jit(lambda tokens, cache: model.apply(variables, tokens, cache, method="step"))
    cache = model.apply(variables, 1, 17, method="init_cache")
    for now, after in zip(ids[:-1], ids[1:], strict=True):
        logits, cache = step(jnp.array([[now]]), cache)
        total -= float(jax.nn.log_softmax(logits[0, 0])[after])
    assert nats == pytest.approx(total, rel=1e-5)


@pytest.mark.each_run("5-5")
@pytest.mark.parametrize(("prompt", "given"), [(0, 8), (5, 5)])
def test_a_completion_keeps_what_is_given_and_is_of_grey_levels(params, prompt, given):
    changes = {"task__sample_prompt": prompt, "model__vocab_size": 32}
    trainer = make_trainer(config_of(**changes), 1)
    wide = start(trainer).params
    likely = jnp.zeros((32, 16)).at[jnp.array([1, 3, 31])].set(5.0)  # no ids of a level
    wide["embedding"]["embedding"] += likely
    images = trainer.task.images["test"][:3]
    made = trainer.task.completions(wide, images, trainer.place)
    assert made.shape == (3, 2, 4, 4) and made.max() < 16
    flat = made.reshape(3, 2, 16)
    for n in range(2):
        np.testing.assert_array_equal(flat[:, n, :given], images.reshape(3, 16)[:, :given])
    assert (flat[:, 0, given:] != flat[:, 1, given:]).any()
    again = trainer.task.completions(wide, images, trainer.place)
    np.testing.assert_array_equal(again, made)


def test_all_zero_logits_need_the_bits_of_the_vocabulary(trainer, params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    values = trainer.evaluate(zeros, "test")
    assert values["bits_per_pixel"] == pytest.approx(17 / 16 * np.log2(20), rel=1e-5)
    assert "bits_per_byte" not in values


@pytest.mark.slow
def test_a_finished_run_leaves_its_completions_beside_the_blind_guess(tmp_path):
    run_alone(config_of(mesh__data=-1), tmp_path)
    image = Image.open(io.BytesIO((tmp_path / "completions.png").read_bytes()))
    assert image.size == ((2 + 2) * (4 * 8 + 4), 3 * (4 * 8 + 4))
    last = read_metrics(tmp_path)[-1]
    assert 0 < last["test/bits_per_pixel_blind"] < 4 < last["test/bits_per_pixel"]


def test_another_number_of_levels_than_the_checkpoints_is_refused(trainer):
    with pytest.raises(LabError, match="task.levels = 8, but the checkpoint's are others"):
        type(trainer.task)(
            "decoder", trainer.task.model_config,
            {**trainer.task.sections, "task": ImageModelingConfig(levels=8)}, trainer.task.assets(),
        )  # fmt: skip
