"""The printed tables: a row for each preset, and the figures that were asked for."""

import json
import re

import jax
import jax.numpy as jnp
import pytest
from absl import flags
from absl.testing import flagsaver
from PIL import Image

from tests.entry import command
from transformer_lab import cli
from transformer_lab.commands import inspect
from transformer_lab.errors import LabError
from transformer_lab.models import decoder
from transformer_lab.models.presets import TABLES
from transformer_lab.models.presets.row import architecture
from transformer_lab.ops import experts
from transformer_lab.training import compiling
from transformer_lab.training.config import default_config, fields_of, resolve


def printed(*arguments):
    """The printed rows by their first cell."""
    done = command("inspect", *arguments)
    assert done.returncode == 0, done.stderr.decode()
    rows = [line.split("│")[1:-1] for line in done.stdout.decode().splitlines() if "│" in line]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows if row[0].strip()}


@pytest.mark.slow
def test_every_preset_has_a_row_with_its_figures():
    rows = printed("--table=decoders", "--devices=1024", "--peak_tflops=312", "--tokens=300e9")
    assert rows.keys() == TABLES["decoders"].keys()
    row = rows["gpt3_175b"]
    assert row[:5] == ["174,604,259,328", "175,000 M", "-0.2 %", "-", "1.08e+12"]
    assert row[5:8] == ["4,718,592", "6e-05", "3,200,000"]
    assert rows["mixtral_8x7b"][3:5] == ["12,879,925,248", "1.28e+11"]
    flops = decoder.training_flops(TABLES["decoders"]["gpt3_175b"].config)
    want = flops * 300e9 / (312e12 * 0.4) / 86_400
    assert float(row[-2].replace(",", "")) == pytest.approx(want, rel=1e-4)
    assert float(row[-1]) == pytest.approx(want / 1024, rel=1e-3)


@pytest.mark.parametrize(("name", "norm", "positions", "inner", "biases"), [
    ("gpt1", "layer_norm last", "learned", "gelu_tanh", "all"),
    ("gpt3_175b", "layer_norm first", "learned", "gelu_tanh", "all"),
    ("opt_175b", "layer_norm first", "learned", "relu", "all"),
    ("palm_540b", "layer_norm first", "rope", "swiglu", "none"),
    ("bloom_176b", "layer_norm first", "alibi", "gelu_tanh", "all"),
    ("glm_130b", "layer_norm last, residuals scaled", "rope", "geglu", "all"),
    ("galactica_120b", "layer_norm first", "learned", "gelu", "none"),
    ("gopher_280b", "rms_norm first", "transformer_xl", "gelu_tanh", "all"),
    ("llama_65b", "rms_norm first", "rope", "swiglu", "none"),
    ("deepseek_moe_16b", "rms_norm first", "rope", "swiglu, experts", "none"),
    ("mamba_2.8b", "rms_norm first", "none", "none", "none"),
])  # fmt: skip
def test_the_table_of_architectures_has_what_the_papers_choose(
    name, norm, positions, inner, biases
):
    row = architecture(name, TABLES["decoders"][name])
    assert [row[key] for key in ("norm", "positions", "feed-forward", "biases")] == [
        norm, positions, inner, biases,
    ]  # fmt: skip


def test_days_follow_the_papers_tokens_and_are_unknown_without():
    cli.declare(inspect)
    flags.FLAGS.mark_as_parsed()
    gpt3, gpt2 = TABLES["decoders"]["gpt3_175b"], TABLES["decoders"]["gpt2_xl"]
    assert inspect.days(gpt3) == {}
    with flagsaver.flagsaver(devices=10, peak_tflops=100.0):
        assert inspect.days(gpt2) == {"device-days": "-", "days": "-"}
        flops = decoder.training_flops(gpt3.config) * 300e9
        assert inspect.days(gpt3)["days"] == f"{flops / 4e13 / 86_400 / 10:,.2f}"
    with flagsaver.flagsaver(devices=10), pytest.raises(LabError, match="--peak_tflops"):
        inspect.days(gpt3)


@pytest.mark.slow
def test_the_encoder_decoders_keep_their_table(capsys):
    inspect.show([inspect.preset_row(*item) for item in TABLES["encoder_decoders"].items()])
    lines = capsys.readouterr().out.splitlines()
    assert "FLOPs" in lines[1] and "learning" not in lines[1]  # a column without a figure is out
    for name in TABLES["encoder_decoders"]:
        assert sum(f" {name} " in line for line in lines) == 1
    sparse = next(line for line in lines if " switch_base " in line)
    assert "7,415,217,408" in sparse and "224,083,200" in sparse
    assert any("214,245,376" in line and "213 M" in line and "+0.6 %" in line for line in lines)


def test_one_config_by_modules_as_stated():
    """A decoder of 3 layers: a line for what its layers have alike, and the sums."""
    config = default_config("decoder", "language_modeling")
    config.model.update(fields_of(TABLES["decoders"]["cpu_2m"].config))
    rows = {row["module"]: row for row in inspect.model_rows(resolve(config))}
    assert rows["embedding"]["parameters"] == f"{4096 * 192:,}"
    query = rows["decoder/layer_0..2/attention/query"]
    kernels = 3 * 192 * 192
    assert query["shapes"] == "bias 192, kernel 192x192"
    assert query["parameters"] == f"{kernels + 3 * 192:,}"
    assert query["FLOPs a token"] == f"{6 * kernels:,}"
    assert query["bytes"] == f"{16 * (kernels + 3 * 192):,}"  # gradient and two moments too
    assert rows["all"]["parameters"] == "2,219,712"
    assert rows["all"]["bytes"] == f"{16 * 2_219_712 + 12:,}"  # and three counts of steps
    assert rows["cache bytes a token"]["parameters"] == f"{2 * 3 * 192 * 2:,}"


def test_a_config_has_the_sizes_that_its_data_gives(tmp_path):
    """Images of 8 x 8 in two classes, and a text of three letters."""
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(12):
            Image.new("L", (9, 9 + i), 20 * i).save(tmp_path / "images" / name / f"{i}.png")
    config = default_config("vision", "image_classification")
    config.data.update(source="folders", path=str(tmp_path / "images"), channels=1)
    config.model.update(image_size=(8, 8), patch_size=(4, 4), layers=1, width=8, heads=2)
    config.model.update(head_dim=4, feed_forward_width=8)
    rows = {row["module"]: row for row in inspect.model_rows(resolve(config))}
    assert rows["classifier"]["shapes"] == "bias 2, kernel 8x2"
    assert rows["patch_embedding"]["shapes"] == "bias 8, kernel 16x8"
    texts = tmp_path / "texts"
    texts.mkdir()
    for split in ("train", "validation", "test"):
        (texts / f"{split}.txt").write_text(f"{split}abcab" * 40, encoding="utf-8")
    config = default_config("decoder", "language_modeling")
    config.data.update(source="files", path=str(texts))
    config.tokenizer.kind = "char"
    config.model.update(layers=1, width=8, heads=1, head_dim=8, feed_forward_width=8)
    rows = {row["module"]: row for row in inspect.model_rows(resolve(config))}
    assert re.fullmatch(r"embedding (\d+)x8", rows["embedding"]["shapes"])
    config.data.path = "/none"
    with pytest.raises(LabError, match="/none.*; or state sizes: --config.model.vocab_size=N"):
        list(inspect.model_rows(resolve(config)))


def test_a_convolution_works_at_each_position_of_its_output_and_bytes_add_up():
    """A stem of 3 x 3 on 8 x 8 pixels, a block there, and one of stride 2 with its shortcut."""
    config = default_config("cnn", "image_classification")
    config.data.update(source="folders", size=(8, 8), channels=1)
    config.model.update(image_size=(8, 8), channels=1, stages=(1, 1), width=4, stem="small")
    config.optimizer.name = "muon"  # holds less for matrices than for vectors
    rows = list(inspect.model_rows(resolve(config)))
    flops = {row["module"]: row["FLOPs an image"] for row in rows}
    kernels = {
        "stem/conv": 64 * 9 * 4,
        "layer_0/part_0/conv": 64 * 9 * 4 * 4,
        "layer_0/part_1/conv": 64 * 9 * 4 * 4,
        "layer_1/part_0/conv": 16 * 9 * 4 * 8,
        "layer_1/part_1/conv": 16 * 9 * 8 * 8,
        "layer_1/shortcut/conv": 16 * 4 * 8,
        "classifier": 8 * 1000,
    }
    assert {name: flops[name] for name in kernels} == {k: f"{6 * n:,}" for k, n in kernels.items()}
    assert flops["all"] == f"{6 * sum(kernels.values()):,}"
    held = {row["module"]: int(row["bytes"].replace(",", "")) for row in rows}
    assert held.pop("all") == sum(held.values())


def test_ways_of_adapting_by_bytes_in_closed_form():
    """Of a decoder of one layer: what trains has two moments, what is frozen its own bytes."""
    settings = {"kind": "decoder", "layers": 1, "width": 64, "heads": 2, "head_dim": 32}
    settings |= {
        "feed_forward_width": 128,
        "vocab_size": 50,
        "max_length": 16,
        "activation": "gelu",
    }
    found = {row["method"]: row for row in inspect.adapting_rows(settings)}
    number = lambda method, name: int(found[method][name].replace(",", ""))  # noqa: E731
    assert "head" not in found
    whole = number("full", "parameters that train")
    assert number("full", "all") == 12 * whole + 8  # and two counts of steps
    factors = 2 * (64 * 8 + 8 * 64)  # of query and value
    kernels = 4 * 64 * 64 + 2 * 64 * 128
    columns = 4 * 64 + 128 + 64
    blocks = 4 * 64 + 128 + 2 * 64  # of 64 inputs
    for method, less in (
        ("lora", 0),
        ("lora, int8 base", 3 * kernels - 4 * columns),
        ("lora, nf4 base", 7 * kernels // 2 - 4 * blocks),
    ):
        assert number(method, "parameters that train") == factors
        assert number(method, "trained, bytes") == 4 * factors
        assert number(method, "Adam") == 8 * factors + 8
        assert number(method, "frozen") == 4 * whole - less
    assert number("adapters", "frozen") < 4 * whole


CONFIG = """
from transformer_lab.training.config import default_config

def get_config(arg=""):
    config = default_config("decoder", "language_modeling")
    config.model.update(layers=2, width=32, heads=4, head_dim=8, feed_forward_width=64,
                        max_length=16, vocab_size=128, scan_layers=True, remat="nothing")
    config.batch.update(rows=16, length=16)
    config.mesh.update(data=1, fsdp=-1)
    return config
"""


def compiled(tmp_path, *arguments):
    path = tmp_path / "tiny.py"
    path.write_text(CONFIG)
    return command("inspect", "--compile", f"--config={path}", *arguments)


def test_a_compiled_step_is_one_line_of_json(tmp_path):
    """FLOPs by hand: 6 N a token and attention's square, and what is computed again."""
    done = compiled(tmp_path, "--topology=cpu:4", "--chip=v5e", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["topology"] == "cpu:4" and found["fits"] is True and found["chip"] == "TPU v5e"
    assert found["mesh"] | {"fsdp": 4} == found["mesh"] and max(found["mesh"].values()) == 4
    a_layer = 4 * 32 * 32 + 2 * 32 * 64
    forward = 2 * (2 * a_layer + 128 * 32) + 2 * 4 * 32 * 16
    assert found["model_flops"] == 3 * forward * 16 * 16
    again = 2 * (2 * a_layer) + 2 * 4 * 32 * 16
    assert found["model_flops"] < 4 * found["flops"] <= found["model_flops"] + again * 16 * 16
    held = found["argument_bytes"] + found["output_bytes"] - found["aliased_bytes"]
    assert found["peak_bytes"] >= held + found["temporary_bytes"] > found["temporary_bytes"] > 0
    kinds = found["collectives"]
    assert found["collective_bytes"] == sum(entry["bytes"] for entry in kinds.values())
    assert kinds["all-gather"]["count"] > 0 and found["collective_bytes"] > 0
    assert found["step_seconds"] == max(found["seconds"].values()) and 0 < found["mfu"] < 1
    assert found["largest"][0]["bytes"] >= found["largest"][-1]["bytes"] > 0


def test_products_of_experts_are_counted_for_those_that_work():
    """Of one layer, K = 2 of 4 experts by `ragged_dot`, on places of them by einsum."""
    x, kernels = jnp.ones((3, 5, 8)), (jnp.ones((4, 8, 6)), None, jnp.ones((4, 6, 8)))
    act = lambda up, gate: jnp.tanh(up)  # noqa: E731

    def flops(make):
        return compiling._traced_flops(jax.make_jaxpr(make)(jnp.full((3, 5, 4), 0.25)).jaxpr)

    def routed(p, capacity=None):
        return experts.choose_experts(p, 2, capacity, renormalize=True)

    chosen = flops(lambda p: experts.sorted_by_expert(x, routed(p), *kernels, act))
    assert chosen == 2 * (2 * 8 * 6) * 2 * 3 * 5
    placed = flops(lambda p: experts.by_places(x, jnp.ones((3, 5, 4, 2)), *kernels, act))
    assert placed == 2 * (2 * 8 * 6) * 3 * 4 * 2 + 2 * (2 * 3 * 5 * 4 * 2 * 8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--topology=cpu:4", "--config.mesh.fsdp=3"], "does not fit 4 devices"),
        (["--topology=cpu:no"], "write the number of devices"),
        (["--topology=v5e"], "write v5e:8x8"),
        (["--topology=cpu:4", "--chip=v9"], '--chip="v9" is unknown'),
        (["--topology=cpu:8", "--config.batch.rows=12"], "not divided by"),
    ],
)
def test_what_cannot_be_compiled_is_one_line(arguments, words, tmp_path):
    done = compiled(tmp_path, *arguments)
    assert done.returncode == 2 and words in done.stderr.decode()
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr.decode()
