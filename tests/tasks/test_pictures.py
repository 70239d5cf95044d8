"""Tasks that make pictures: what is drawn depends on seed, text and guidance alone."""

import io
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import transformer_lab
from tests.entry import command
from tests.tasks.examples import config_of
from tests.tiny import draw, leave_run, make_trainer, run_alone
from transformer_lab.errors import LabError
from transformer_lab.ops import diffusion

KINDS = {
    "flow": ("diffusion", {"decode.steps": 3}),
    "ddpm": ("diffusion", {"decode.steps": 3, "task.process": "ddpm", "model.text_layers": 1}),
    "order": ("picture_codes", {}),
    "parallel": ("picture_codes", {"model.text.mask": "prefix", "decode.steps": 2}),
}


SIZES = {"diffusion": 0.15, "picture_codes": 0.5}  # of parameters, so that no pixel is at a bound
SLOW = ("ddpm", "order")


def built(kind, folder, **more):
    task, changes = KINDS[kind]
    config = config_of(task, folder)
    config.update_from_flattened_dict(changes | {"decode.rows": 4} | more)
    trainer = make_trainer(config, 1)
    inputs = trainer.task.family.example_inputs()
    return (
        trainer.task,
        draw(trainer.task.model, *inputs, size=SIZES[task])["params"],
        trainer.place,
    )


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in KINDS]
)
def test_pictures_follow_from_seed_text_and_guidance(kind, tmp_path):
    task, params, place = built(kind, tmp_path)
    first = task.draw(params, ["a", "b", ""], 2, 0, place)
    assert first.shape == (3, 2, 2, 2, 1) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, task.draw(params, ["a", "b", ""], 2, 0, place))
    np.testing.assert_array_equal(first[:1], task.draw(params, ["a"], 2, 0, place))
    assert (task.draw(params, ["a", "b", ""], 2, 1, place) != first).any()
    with pytest.raises(LabError, match='the class "cat" is unknown'):
        task.draw(params, ["cat"], 1, 0, place)
    more = built(kind, tmp_path, **{"decode.guidance": 30.0})[0]
    guided = more.draw(params, ["a", "b", ""], 2, 0, place)
    np.testing.assert_array_equal(guided[2], first[2])  # nothing guides without a text
    assert (guided[:2] != first[:2]).any()


def test_generate_writes_a_row_for_each_prompt_and_refuses_what_is_no_picture(tmp_path):
    task, changes = KINDS["parallel"]
    config = config_of(task, tmp_path)
    config.update_from_flattened_dict(changes)
    leave_run(config, tmp_path / "run")
    (tmp_path / "prompts").write_text("a\nb\n")
    asked = [f"--workdir={tmp_path}/run", f"--prompts={tmp_path}/prompts", "--num_samples=3"]
    done = command("generate", *asked, f"--output={tmp_path}/grid.png")
    assert done.returncode == 0, done.stderr.decode()
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.size == (3 * (2 * 2 + 4), 2 * (2 * 2 + 4)) and grid.mode == "L"
    done = command("generate", *asked)
    assert done.returncode == 2 and b"--output=FILE.png" in done.stderr


@pytest.mark.slow
def test_codes_are_learned_on_a_vqvae_run_that_stays_as_it_is(tmp_path):
    first, second = (config_of(task, tmp_path) for task in ("image_prediction", "picture_codes"))
    for config in (first, second):
        config.update(steps=3, save_every=3, eval_every=3, log_every=1)
    run_alone(first, tmp_path / "vqvae")
    second.adapt.update(method="head", train="^text/")
    second.task.samples = second.task.copies = 2
    run_alone(second, tmp_path / "codes", f"{tmp_path}/vqvae", init_into="image")
    opened = [transformer_lab.open_run(tmp_path / name) for name in ("vqvae", "codes")]
    before, after = (run.params for run in opened)
    jax.tree.map(
        np.testing.assert_array_equal,
        [before["narrow"], before["batch_stats"]],
        [after["image"]["narrow"], after["batch_stats"]["image"]],
    )
    moved = opened[0].params["batch_stats"]["codebook"]["counts"]
    assert not np.allclose(moved, 1.0)  # the first run's codebook followed its images
    assert (tmp_path / "codes" / "samples.png").exists()
    assert (tmp_path / "vqvae" / "made.png").exists()


def test_larger_images_are_scored_beside_enlarged_ones(tmp_path):
    config = config_of("image_prediction", tmp_path)
    config.update_from_flattened_dict(
        {"task.shrink": 2, "model.codes": 0, "model.image_size": (12, 12), "data.channels": 1}
    )
    task = make_trainer(config, 1).task
    params = draw(task.model, *task.family.example_inputs(), size=0.1)["params"]
    nothing = jax.tree.map(jnp.zeros_like, params)  # adds nothing to the enlarged image
    batch = jax.tree.map(jnp.asarray, next(iter(task.eval_batches("test"))))
    found = jax.jit(task.metrics)(nothing, batch)
    for name in ("psnr", "ssim"):
        assert found[name] == found[f"{name}_given"]
    clean = np.asarray(task.clean(batch))
    small = jax.image.resize(clean, (2, 6, 6, 1), "cubic")
    given = jax.image.resize(small, clean.shape, "cubic")
    errors = np.square((np.clip(given, -1, 1) - clean) / 2).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(found["psnr"][0], (-10 * np.log10(errors)).sum(), rtol=1e-4)
    assert found["psnr"][1] == 2
    made = task.score(params, "test", make_trainer(config, 1).place, True).files["made.png"]
    with Image.open(io.BytesIO(made)) as sheet:
        assert sheet.size == (2 * (12 * 2 + 4), 3 * (12 * 2 + 4))


def test_a_flow_is_drawn_by_the_conditional_model_alone_where_guidance_is_one(tmp_path):
    task, params, place = built("flow", tmp_path, **{"decode.guidance": 1.0})
    found = task.draw(params, ["b"], 4, 7, place)[0]
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(7)))(jnp.arange(4))
    noise = jax.vmap(lambda key: jax.random.normal(key, (2, 2, 1)))(keys)
    tokens = jnp.array([[*task.tokenizer.encode("b"), 0]] * 4)
    predict = lambda x, t: task.model.apply({"params": params}, x, t, tokens, tokens > 0)  # noqa: E731
    wanted = diffusion.sample("flow", predict, noise, 3)
    np.testing.assert_allclose(found, (np.clip(wanted, -1, 1) + 1) * 127.5, atol=0.51)


@pytest.mark.each_run("parallel")
@pytest.mark.parametrize("kind", ["flow", "parallel"])
def test_training_tells_some_images_no_text_and_an_evaluation_tells_all(kind, tmp_path):
    task, params, place = built(kind, tmp_path, **{"task.drop": 0.5})
    batch = place(next(iter(task.eval_batches("test"))))
    many = {name: jnp.repeat(x, 400, axis=0) for name, x in batch.items()}
    seen = task.kept(many, jax.random.key(0))
    assert 0.4 < seen[:, 0].mean() < 0.6 and not seen[:, 1].any()
    assert task.kept(many, None)[:, 0].all()
    loss = jax.jit(task.loss)
    assert len({float(loss(params, batch, jax.random.key(i))["loss"][0]) for i in (0, 0, 1)}) == 2
