"""What the encoder-only families share: heads, old spellings of names, and the tensors' names."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.pretrained.core import (
    LABELLED,
    Found,
    Settings,
    label_names,
    label_settings,
)
from transformer_lab.pretrained.names import NameMap, Rule, behind, dense, layers, norm

ENDS = {  # our head -> the end of the model's class name, after the family's title
    "none": "Model",
    "mlm": "ForMaskedLM",
    "mlm_nsp": "ForPreTraining",
    "classes": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
MARKS = {  # a tensor that only models with this head have; the first found counts
    "cls.seq_relationship.weight": "mlm_nsp",
    "cls.predictions.transform.dense.weight": "mlm",
    "lm_head.dense.weight": "mlm",
    "vocab_transform.weight": "mlm",
    "qa_outputs.weight": "span",
    "classifier.out_proj.weight": "classes",
    "pre_classifier.weight": "classes",
}
POOLER = "pooler.dense.weight"
BODY = re.compile(r"(embeddings|encoder|transformer|pooler)\.")
SIZES = {  # defaults of the "base" sizes, for text and images
    "hidden_size": ("width", 768),
    "num_hidden_layers": ("layers", 12),
    "num_attention_heads": ("heads", 12),
    "intermediate_size": ("feed_forward_width", 3072),
}
CONSTANTS = {"positions": "learned"}
FIXED = {"position_embedding_type": ("absolute",)}


def architectures(title: str, *heads: str) -> tuple[str, ...]:
    """The class names of a family with these heads; by default with all but "mlm_nsp"."""
    return tuple(title + ENDS[head] for head in heads or ENDS if heads or head != "mlm_nsp")


def bare(name: str, model_type: str) -> str:
    """A tensor's name in its recent spelling, without the family's prefix."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return name.removeprefix(f"{model_type}.")


def read_head(settings: Settings, title: str, names: Iterable[str]) -> Found:
    """The head and its labels: of the first class that the file names, else told by its tensors."""
    found = {"head": "none"}
    if named := settings.values.get("architectures"):
        ends = {title + end: head for head, end in ENDS.items()}
        found["head"] = ends[named[0]]
    elif known := [head for tensor, head in MARKS.items() if tensor in names]:
        found["head"] = known[0]
    elif "classifier.weight" in names:
        found["head"] = "classes" if POOLER in names else "tokens"
    if found["head"] in LABELLED:
        count = found["labels"] = len(label_names(settings))
        usual = "regression" if count == 1 else "single_label_classification"
        if found["head"] == "classes" and settings.values.get("problem_type") not in (None, usual):
            raise settings.error("problem_type", f'with {count} labels only "{usual}" is')
    return found


def write_head(config: EncoderConfig, title: str) -> dict[str, Any]:
    """Hugging Face's settings for the head: the class name and the labels."""
    written = {"architectures": [title + ENDS[config.head]]}
    if config.head in LABELLED:
        written |= label_settings(config.labels)
    if config.head == "classes" and config.labels == 1:
        written["problem_type"] = "regression"
    return written


def idle(config: EncoderConfig) -> set[str]:
    """Settings that do not affect the outputs of a model with this config."""
    unread = {
        "mlm_activation": config.head not in ("mlm", "mlm_nsp"),
        "labels": config.head not in LABELLED,
        "pooler_activation": not config.pooler,
    }
    return {name for name, is_idle in unread.items() if is_idle}


def name_map(
    config: EncoderConfig,
    model_type: str,
    stack: str,
    layer: Mapping[str, str],
    heads: Mapping[str, str],
    first: int = 0,
    unused: Iterable[str] = (),
) -> NameMap:
    """The name map of a family. Position 0 is row `first` of the table; only padding uses the rows
    before.

    `heads` gives the names of the pooler and of the heads' parts. In a model with a head, names of
    the body begin with the family's name."""
    prefix = "" if config.head == "none" else f"{model_type}."
    whole = lambda name: prefix + name if BODY.match(name) else name  # noqa: E731
    words = f"{prefix}embeddings.word_embeddings.weight"
    rules = [
        Rule("embedding/embedding", words),
        Rule("positions/embedding", whole("embeddings.position_embeddings.weight"), behind(first)),
        *norm("embedding_norm", whole("embeddings.LayerNorm")),
        *layers(config, "encoder", whole(stack), layer),
    ]
    copies = {}
    if config.types:
        types = whole("embeddings.token_type_embeddings.weight")
        rules.append(Rule("type_embedding/embedding", types))
    if config.pooler:
        rules += dense("pooler", whole(heads["pooler"]))
    if config.head in ("mlm", "mlm_nsp"):
        rules += dense("mlm_transform", heads["mlm_transform"])
        rules += norm("mlm_norm", heads["mlm_norm"])
        rules.append(Rule("mlm_bias", heads["mlm_bias"]))
        copies = {f"{heads['mlm_output']}.weight": words}
        copies[f"{heads['mlm_output']}.bias"] = heads["mlm_bias"]
        copies.pop(heads["mlm_bias"], None)
    if config.head == "mlm_nsp" and "nsp" in heads:  # else it is refused
        rules += dense("nsp", heads["nsp"])
    if config.head in ("classes", "tokens", "span"):
        rules += dense("classifier", heads[config.head])
    buffers = {f"{prefix}embeddings.{ids}" for ids in ("position_ids", "token_type_ids")}
    rename = lambda name: whole(bare(name, model_type))  # noqa: E731
    return NameMap(tuple(rules), copies, unused=frozenset({*buffers, *unused}), rename=rename)
