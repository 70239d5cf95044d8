"""MarianMT (Junczys-Dowmunt 2018, as in Hugging Face's `marian`): the encoder-decoder of 2017."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_lab.errors import LabError
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.ops.positions import sinusoids
from transformer_lab.pretrained.encoder_decoder_settings import differ, read_sizes, write_sizes
from transformer_lab.pretrained.generation import GENERATION_KEYS
from transformer_lab.pretrained.keys import ACTIVATIONS, UNSET, Settings, words
from transformer_lab.pretrained.names import (
    ROW,
    SAME,
    NameMap,
    Rule,
    Transform,
    agrees,
    dense,
    norm,
)
from transformer_lab.pretrained.running import INPUTS, generate, outputs, shapes

# What the registry asks of a family.
__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

KIND = "encoder_decoder"  # the model's, in transformer_lab.models

# They change no number in evaluation: names, versions, what is returned, training only, and
# `add_bias_logits`, because the tensor final_logits_bias itself says whether there is one.
IRRELEVANT = words("""
    _attn_implementation _commit_hash _name_or_path _num_labels add_bias_logits architectures
    attn_implementation chunk_size_feed_forward classif_dropout classifier_dropout
    decoder_layerdrop dtype encoder_layerdrop extra_pos_embeddings finetuning_task
    gradient_checkpointing id2label label2id num_labels prefix problem_type return_dict
    sep_token_id task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript
    transformers_version use_bfloat16
""")

# Another value would ask for an architecture that this one is not.
FIXED = {
    "model_type": ("marian",),
    "add_cross_attention": (False,),
    "add_final_layer_norm": (False,),
    "cross_attention_hidden_size": UNSET,
    "is_decoder": (False,),
    "is_encoder_decoder": (True,),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "per_layer_config": (None, {}),
    "pruned_heads": (None, {}),
    "quantization_config": UNSET,
    "static_position_embeddings": (True,),
    "tie_encoder_decoder": (False,),
}

# Our settings that their architecture has no choice about.
REQUIRED = {
    "norm": "layer_norm",
    "norm_place": "post",
    "norm_epsilon": 1e-5,
    "norm_bias": True,
    "attention_bias": True,
    "feed_forward_bias": True,
    "scale_attention": True,
    "block": "serial",
    "embedding_norm": False,
    "scale_output": False,
}
POSITIONS = {  # of our model: where a file may have the table
    "source_positions/embedding": "model.encoder.embed_positions.weight",
    "target_positions/embedding": "model.decoder.embed_positions.weight",
}
SHARED, HEAD, BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"


def reading(
    settings: Settings, tensors: Mapping[str, np.ndarray]
) -> tuple[EncoderDecoderConfig, NameMap]:
    """The model that their settings describe, and where its weights stand."""
    settings.ignore([*IRRELEVANT, *GENERATION_KEYS])
    settings.fix(FIXED)
    architecture = (settings.values.get("architectures") or ["MarianMTModel"])[0]
    if architecture != "MarianMTModel":
        raise settings.error("architectures", "only MarianMTModel is")
    shared = settings.flag("share_encoder_decoder_embeddings", True)
    tied_head = settings.flag("tie_word_embeddings", True)
    source_vocab = settings.integer("vocab_size", 58101)
    vocab = settings.integer("decoder_vocab_size", None) or source_vocab
    if shared and vocab != source_vocab:
        raise settings.error(
            "decoder_vocab_size", f"shared embeddings need that of vocab_size = {source_vocab}"
        )
    # Shared tables without tying are separate parameters for recent readers, if the file has them.
    split = shared and not tied_head and differ(tensors, SHARED, SOURCE, TARGET)
    sizes = read_sizes(settings)
    max_length = settings.integer("max_position_embeddings", 1024)
    config = EncoderDecoderConfig(
        **REQUIRED,
        **sizes,
        positions=_positions(tensors, max_length, sizes["width"]),
        vocab_size=vocab,
        source_vocab_size=None if shared and not split else source_vocab,
        tie_source_target=shared and not split,
        tie_head=tied_head,
        head_bias=BIAS in tensors,
        max_length=max_length,
        embedding_scale=settings.flag("scale_embedding", False),
        activation=settings.choice("activation_function", "gelu", ACTIVATIONS),
        dropout=settings.number("dropout", 0.1),
        attention_dropout=settings.number("attention_dropout", 0.0),
        feed_forward_dropout=settings.number("activation_dropout", 0.0),
        init_std=settings.number("init_std", 0.02),
    )
    settings.finish()
    return config, names_of(config, unused=frozenset([SHARED]) if split else frozenset())


def _positions(tensors: Mapping[str, np.ndarray], length: int, width: int) -> str:
    """Their readers use the tables of a file as they are: others than the formula's are learned."""
    formula = _sinusoids(length, width)
    tables = [tensors[name] for name in POSITIONS.values() if name in tensors]
    other = any(t.shape == formula.shape and not agrees(t, formula) for t in tables)
    return "learned" if other else "sinusoidal_halves"


def _sinusoids(length: int, width: int) -> np.ndarray:
    return np.asarray(sinusoids(jnp.arange(length), width, halves=True))


def writing(config: EncoderDecoderConfig) -> tuple[dict[str, Any], NameMap]:
    """Their settings of our model, special tokens aside, and where the weights go."""
    for name, value in REQUIRED.items():
        if getattr(config, name) != value:
            raise LabError(
                f"model.{name} = {getattr(config, name)!r} has no place in a Marian model: "
                f"it needs {value!r}"
            )
    if config.positions not in ("sinusoidal_halves", "learned"):
        raise LabError(
            f'model.positions = "{config.positions}" has no place in a Marian model: '
            'it needs "sinusoidal_halves" or "learned"'
        )
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    if config.activation not in activations:
        raise LabError(f'model.activation = "{config.activation}" has no place in a Marian model')
    hf = {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "dtype": "float32",
        "is_encoder_decoder": True,
        "vocab_size": config.source_vocab_size or config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.tie_source_target,
        "tie_word_embeddings": config.tie_head,
        "max_position_embeddings": config.max_length,
        "scale_embedding": config.embedding_scale,
        "activation_function": activations[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.feed_forward_dropout,
        "init_std": config.init_std,
    }
    return hf | write_sizes(config, "Marian"), names_of(config)


def names_of(
    config: EncoderDecoderConfig, unused: frozenset[str] = frozenset(), learned: Transform = SAME
) -> NameMap:
    """The table; the readers' names of the embeddings depend on what is tied.

    `learned` lays tables of learned positions out as theirs are.
    """
    shared, tied_head = config.tie_source_target, config.tie_head
    target = SHARED if shared else TARGET
    rules = [Rule("target_embedding/embedding", target), *_layers("encoder"), *_layers("decoder")]
    copies = {}
    if shared:
        copies = {SOURCE: SHARED, TARGET: SHARED}
    else:
        rules.append(Rule("source_embedding/embedding", SOURCE))
    if tied_head:
        copies[HEAD] = target
    else:
        rules.append(Rule("head/embedding", HEAD))
    if config.head_bias:
        rules.append(Rule("head_bias", BIAS, ROW))
    # Recent readers tie nothing at all when the head is not tied: they look for every table.
    written = frozenset(copies) if shared and not tied_head else frozenset()
    derived = {}
    if config.positions == "learned":
        rules += [Rule(ours, theirs, learned) for ours, theirs in POSITIONS.items()]
    else:
        formula = lambda: _sinusoids(config.max_length, config.width)  # noqa: E731
        derived = dict.fromkeys(POSITIONS.values(), formula)
    return NameMap(tuple(rules), copies, derived, unused, written)


def _layers(stack: str) -> list[Rule]:
    ours, theirs = stack + "/layer_{i}", f"model.{stack}.layers." + "{i}"
    attentions = {"attention": "self_attn"}
    if stack == "decoder":
        attentions["cross_attention"] = "encoder_attn"
    rules = []
    for mine, other in attentions.items():
        for part in ("query", "key", "value"):
            rules += dense(f"{ours}/{mine}/{part}", f"{theirs}.{other}.{part[0]}_proj")
        rules += dense(f"{ours}/{mine}/out", f"{theirs}.{other}.out_proj")
        rules += norm(f"{ours}/{mine}_norm", f"{theirs}.{other}_layer_norm")
    rules += dense(f"{ours}/feed_forward/up", f"{theirs}.fc1")
    rules += dense(f"{ours}/feed_forward/down", f"{theirs}.fc2")
    return [*rules, *norm(f"{ours}/feed_forward_norm", f"{theirs}.final_layer_norm")]
