"""What the settings and names of the encoder-only families share.

A family says how it differs. The rest is here: which head a directory has, old spellings of names,
labels, special tokens, and the refusal of what has no place.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer_lab.errors import LabError
from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.pretrained.decoder_settings import FIXED, IRRELEVANT, refuse_lost
from transformer_lab.pretrained.generation import (
    DECODER_SPECIAL,
    GENERATION_KEYS,
    NO_TOKEN,
    SpecialIds,
)
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import NameMap

FIELDS = {  # of BERT and RoBERTa
    "vocab_size": ("vocab_size", 30522),
    "hidden_size": ("width", 768),
    "num_hidden_layers": ("layers", 12),
    "num_attention_heads": ("heads", 12),
    "intermediate_size": ("feed_forward_width", 3072),
    "hidden_act": ("activation", "gelu"),
    "max_position_embeddings": ("max_length", 512),
    "type_vocab_size": ("types", 2),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "initializer_range": ("init_std", 0.02),
}
ARCHITECTURES = {  # what follows the family's name -> our head
    "Model": "none",
    "ForMaskedLM": "mlm",
    "ForPreTraining": "mlm_nsp",
    "ForSequenceClassification": "classes",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "span",
}
MARKS = {  # a tensor that only models with the head have; the first that is found
    "cls.seq_relationship.weight": "mlm_nsp",
    "cls.predictions.transform.dense.weight": "mlm",
    "lm_head.dense.weight": "mlm",
    "vocab_transform.weight": "mlm",
    "qa_outputs.weight": "span",
    "classifier.out_proj.weight": "classes",
    "pre_classifier.weight": "classes",
}
LABELLED = ("classes", "tokens")
ENCODER_FIXED = {"is_decoder": (False,), "position_embedding_type": ("absolute",)}
POOLER = "pooler.dense.weight"
BODY = re.compile(r"(embeddings|encoder|transformer|pooler)\.")


@dataclass(frozen=True)
class Family:
    """How one of them differs. `pad` is the padding token that is meant if none is named."""

    model_type: str
    title: str  # what its classes' names begin with
    # head, tensors, padding -> fields of ours beyond those that all have
    read: Callable[[Settings, str, frozenset[str], int], dict[str, Any]]
    write: Callable[[EncoderConfig, int, str], dict[str, Any]]  # padding, architecture
    names: Callable[[EncoderConfig, str, int], NameMap]  # what the body's names begin with, padding
    pad: int = 0


def both_ways(family: Family) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A family's `reading` and `writing`."""

    def whole(settings: Settings, tensors: Iterable[str]) -> EncoderConfig:
        bare = frozenset(_rename(name, family.model_type, "") for name in tensors)
        settings.ignore([*IRRELEVANT, *GENERATION_KEYS, "tie_word_embeddings"])
        settings.fix(FIXED | ENCODER_FIXED | {"model_type": (family.model_type,)})
        head = _head(settings, family.title, bare)
        found = family.read(settings, head, bare, _pad(settings, family))
        if head in LABELLED:
            found["labels"] = _count_labels(settings, head)
        settings.finish()
        return EncoderConfig(head=head, positions="learned", **found)

    def names(config: EncoderConfig, pad: int) -> NameMap:
        prefix = "" if config.head == "none" else f"{family.model_type}."
        found = family.names(config, prefix, pad)
        rename = lambda name: _rename(name, family.model_type, prefix)  # noqa: E731
        buffers = {f"{prefix}embeddings.{ids}" for ids in ("position_ids", "token_type_ids")}
        return NameMap(found.rules, found.copies, unused=found.unused | buffers, rename=rename)

    def reading(
        settings: Settings, tensors: Mapping[str, np.ndarray]
    ) -> tuple[EncoderConfig, NameMap]:
        """The model that their settings describe, and where its weights stand."""
        config = whole(settings, tensors)
        return config, names(config, _pad(settings, family))

    def writing(config: EncoderConfig, pad: int = NO_TOKEN) -> tuple[dict[str, Any], NameMap]:
        """Their settings of our model, special tokens aside, and where the weights go."""
        pad = family.pad if pad == NO_TOKEN else pad
        ends = {head: end for end, head in ARCHITECTURES.items()}
        written = family.write(config, pad, family.title + ends[config.head])
        if config.head in LABELLED:
            written |= label_settings([f"LABEL_{i}" for i in range(config.labels)])
        if config.head == "classes" and config.labels == 1:
            written["problem_type"] = "regression"
        settings = Settings(written | {"pad_token_id": pad}, family.model_type)
        back = whole(settings, [POOLER] if config.pooler else [])
        refuse_lost(config, back, family.model_type, _idle(config))
        return written, names(config, pad)

    return reading, writing


def _rename(name: str, model_type: str, prefix: str) -> str:
    """A tensor's name with the wanted beginning, in recent spelling."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    name = name.removeprefix(f"{model_type}.")
    return prefix + name if BODY.match(name) else name


def _pad(settings: Settings, family: Family) -> int:
    value = settings.raw("pad_token_id", family.pad)
    return value if type(value) is int and value >= 0 else family.pad


def _head(settings: Settings, title: str, tensors: frozenset[str]) -> str:
    """That of the first architecture named, else that of the tensors."""
    named = settings.values.get("architectures")
    if named:
        known = {title + end: head for end, head in ARCHITECTURES.items()}
        if title != "Bert":
            del known[f"{title}ForPreTraining"]
        if not isinstance(named, list) or named[0] not in known:
            raise settings.error("architectures", f"only {', '.join(known)} are")
        return known[named[0]]
    for tensor, head in MARKS.items():
        if tensor in tensors:
            return head
    if "classifier.weight" in tensors:
        return "classes" if POOLER in tensors else "tokens"
    return "none"


def _idle(config: EncoderConfig) -> set[str]:
    """Settings that no number of this model depends on."""
    idle = {"head_dropout"}
    if config.head not in ("mlm", "mlm_nsp"):
        idle.add("mlm_activation")
    if config.head not in LABELLED:
        idle.add("labels")
    return idle if config.pooler else idle | {"pooler_activation"}


def _count_labels(settings: Settings, head: str) -> int:
    """How many, and the refusal of what is not one class of several, or one number."""
    count = len(label_names(settings.values, settings.file))
    problem = settings.values.get("problem_type")
    usual = "regression" if count == 1 else "single_label_classification"
    if head == "classes" and problem not in (None, usual):
        raise settings.error("problem_type", f'with {count} labels only "{usual}" is')
    return count


def label_names(values: Mapping[str, Any], file: str = "") -> list[str]:
    """The labels of a config.json in the order of the outputs; two, if it does not say."""
    count, table = values.get("num_labels"), values.get("id2label")
    if table is None:
        return [f"LABEL_{i}" for i in range(2 if count is None else count)]
    ids = {str(i): name for i, name in table.items()}
    order = [str(i) for i in range(len(ids))]
    if sorted(order) != sorted(ids) or count not in (None, len(ids)):
        raise LabError(f"{file}: id2label must number its {count or len(ids)} labels from 0")
    return [str(ids[i]) for i in order]


def label_settings(labels: Iterable[str]) -> dict[str, Any]:
    """Their settings of named labels."""
    numbered = dict(enumerate(labels))
    return {
        "id2label": {str(i): name for i, name in numbered.items()},
        "label2id": {name: i for i, name in numbered.items()},
    }


def special_ids(values: Mapping[str, Any], pad: int) -> SpecialIds:
    """Those that config.json names, and the padding that is meant if it does not."""
    found = {name: values.get(key, NO_TOKEN) for name, key in DECODER_SPECIAL.items()}
    found["pad"] = values.get("pad_token_id", pad)
    known = {name: i if type(i) is int and i >= 0 else NO_TOKEN for name, i in found.items()}
    return SpecialIds(**known)
