"""LoRA factors in the layout of Hugging Face's `peft`."""

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors.numpy import save_file

from transformer_lab import pretrained
from transformer_lab.pretrained.hub import refuse_taken
from transformer_lab.pretrained.names import NameMap, Shapes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TASKS = {"decoder": "CAUSAL_LM", "encoder": "FEATURE_EXTRACTION", "encoder_decoder": "SEQ_2_SEQ_LM"}
TASKS |= {"whisper": "SEQ_2_SEQ_LM"}
Factors = Mapping[str, tuple[Float[np.ndarray, "i r"], Float[np.ndarray, "r o"]]]


def export_lora(
    factors: Factors,
    config: Any,
    directory: str | Path,
    model_type: str,
    scale: float,
    dropout: float = 0.0,
) -> None:
    """Writes factors (a, b) that change our kernels by scale * a b; never over another adapter."""
    path, record = Path(directory), pretrained.family(model_type)
    refuse_taken(path, (CONFIG, WEIGHTS))
    _, names = record.writing(config)
    shapes = record.shapes(config)
    found, turned = their_factors(names, shapes, factors)
    rank = max(len(a) for a, _ in found.values())
    settings = {
        "peft_type": "LORA",
        "task_type": TASKS[record.kind],
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": dropout,
        "target_modules": _short(sorted(found), [*chain(*names.names(shapes))]),
        "fan_in_fan_out": turned,
        "bias": "none",
        "inference_mode": True,
    }
    tensors = {}
    for name, (a, b) in found.items():
        room = ((0, rank - len(a)), (0, 0))  # the rank of a packed tensor is the sum of its parts'
        stem = f"base_model.model.{name}"
        tensors[f"{stem}.lora_A.weight"] = np.pad(a, room)
        tensors[f"{stem}.lora_B.weight"] = np.pad(b.T, room).T
    # safetensors stores memory as it is, so arrays must be contiguous.
    tensors = {name: np.ascontiguousarray(x, np.float32) for name, x in tensors.items()}
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    (path / CONFIG).write_text(json.dumps(settings, indent=2), encoding="utf-8")


def their_factors(
    names: NameMap, shapes: Shapes, factors: Factors
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], bool]:
    """A [R, in] and B [out, R] by the file's module, and whether its weights are [in, out].

    For a tensor that packs several kernels, A stacks the factors of each, and B is block diagonal:
    each kernel's factor in its own columns and rows."""
    found, turned = {}, False
    for (name, *_), (paths, transform) in names.names(shapes).items():
        chosen = [path for path in paths if path in factors]
        if not chosen:
            continue
        a = np.concatenate([factors[path][0].T for path in chosen])
        parts, row = [], 0
        for path in paths:
            part = np.zeros((len(a), shapes[path][1]), np.float32)
            if path in factors:
                b = factors[path][1]
                part[row : row + len(b)], row = b, row + len(b)
            parts.append(part)
        # Packing changes outputs only, so it applies to B with the rank as the input dimension.
        b = transform.to_theirs(*parts)
        turned = transform.to_theirs(*(part[:1] for part in parts)).shape[0] == 1
        found[name.removesuffix(".weight")] = a, b.T if turned else b
    return found, turned


def _short(modules: list[str], table: Iterable[str]) -> list[str]:
    """The last part of each module's name, if no other module has it; else the full names."""
    last = {name.rpartition(".")[2] for name in modules}
    every = {name.removesuffix(".weight") for name in table if name.endswith(".weight")}
    same = {name for name in every if name.rpartition(".")[2] in last}
    return sorted(last) if same == set(modules) else modules
