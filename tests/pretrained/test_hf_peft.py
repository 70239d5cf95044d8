"""LoRA factors in peft's layout: with its formula they make the merged model of the same family."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained.names import export_params
from transformer_lab.pretrained.peft import export_lora
from transformer_lab.training.adapting import assemble, lora_factors, split
from transformer_lab.training.config import AdaptConfig

ROOT = Path(__file__).parents[1] / "fixtures" / "decoders"
WANTED = {  # family, targets -> their modules, rank in the file
    ("llama", r"(query|value)/kernel$"): (["q_proj", "v_proj"], 3),
    ("gpt2", r"(query|value|down)/kernel$"): (["c_attn", "mlp.c_proj"], 6),
    ("bloom", r"attention/(query|key|value|out)/kernel$"): (["dense", "query_key_value"], 9),
    ("opt", r"layer_1/.*(query|up)/kernel$"): (["1.fc1", "1.self_attn.q_proj"], 3),
}


@pytest.mark.parametrize(("name", "targets"), WANTED)
def test_their_formula_gives_the_merged_model(name, targets, tmp_path):
    model = pretrained.load(ROOT / name)
    config = AdaptConfig(method="lora", rank=3, alpha=7.0, targets=targets)
    params = jax.tree.map(jnp.asarray, model.params)
    trained, frozen = split(params, config, jax.random.key(0))
    rng = np.random.default_rng(0)
    trained = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), trained)
    factors, _ = lora_factors(trained)
    export_lora(factors, model.config, tmp_path, name, 7 / 3, 0.1)
    settings = json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    record = pretrained.family(name)
    names, shapes = record.writing(model.config)[1], record.shapes(model.config)
    weights = export_params(names, model.params, shapes)
    stems = {key.removesuffix(".lora_A.weight") for key in tensors if "lora_A" in key}
    assert len(tensors) == 2 * len(stems)
    for stem in stems:
        a, b = (tensors[f"{stem}.lora_{side}.weight"] for side in "AB")
        assert len(a) == b.shape[1] == settings["r"]
        change = settings["lora_alpha"] / settings["r"] * b @ a
        weight = stem.removeprefix("base_model.model.") + ".weight"
        weights[weight] = weights[weight] + (change.T if settings["fan_in_fan_out"] else change)
        assert stem.endswith(tuple(settings["target_modules"]))
    merged = export_params(names, jax.device_get(assemble(trained, frozen, config)), shapes)
    for key, value in merged.items():
        np.testing.assert_allclose(weights[key], value, atol=2e-5, err_msg=key)
    modules, rank = WANTED[name, targets]
    found = {m for m in modules if any(t.endswith(m) for t in settings["target_modules"])}
    assert found == set(modules) and settings["r"] == rank
    assert settings["peft_type"] == "LORA" and settings["task_type"] == "CAUSAL_LM"
    with pytest.raises(LabError, match="adapter_config.json already"):
        export_lora(factors, model.config, tmp_path, name, 1.0)
