"""What the settings and name maps of the decoder-only families share.

A family lists its `FIELDS`, their key -> (ours, what is meant if it is missing); the default's type
says what is read. Whatever else it holds is code. An export is read back before it is accepted:
the first setting of ours that does not return has no place in that family.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from transformer_lab.errors import LabError
from transformer_lab.layers.config import StackConfig
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.generation import GENERATION_KEYS
from transformer_lab.pretrained.keys import ACTIVATIONS, UNSET, Settings, words
from transformer_lab.pretrained.names import NameMap, Rule, Transform

Fields = Mapping[str, tuple[str, Any]]

# They change no number in evaluation: names, versions, what is returned, training only.
IRRELEVANT = words("""
    _attn_implementation _commit_hash _name_or_path _num_labels architectures attn_implementation
    chunk_size_feed_forward dtype finetuning_task gradient_checkpointing id2label is_decoder
    label2id num_labels prefix problem_type return_dict sep_token_id task_specific_params
    tokenizer_class torch_dtype torchscript transformers_version unk_token_id use_bfloat16
""")
FIXED = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": UNSET,
    "is_encoder_decoder": (False,),
    "per_layer_config": (None, {}),
    "pruned_heads": (None, {}),
    "quantization_config": UNSET,
    "tie_encoder_decoder": (False,),
}
# Settings of ours that training and the machine read, and no number in evaluation depends on.
IMMATERIAL = words("""
    attention_dropout attention_implementation depth_scaled_init drop_path dropout dtype dyt_alpha
    feed_forward_dropout init_std kernel_init relative_buckets relative_max_distance remat
    scan_layers vocab_multiple
""")


def both_ways(
    read: Callable[[Settings], DecoderConfig],
    write: Callable[[DecoderConfig], dict[str, Any]],
    names: Callable[[DecoderConfig], NameMap],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A family's `reading` and `writing`."""

    def whole(settings: Settings) -> DecoderConfig:
        config = read(settings)
        settings.finish()
        return config

    def reading(
        settings: Settings, tensors: Mapping[str, np.ndarray]
    ) -> tuple[DecoderConfig, NameMap]:
        """The model that their settings describe, and where its weights stand."""
        config = whole(settings)
        return config, names(config)

    def writing(config: DecoderConfig) -> tuple[dict[str, Any], NameMap]:
        """Their settings of our model, special tokens aside, and where the weights go."""
        written = write(config)
        name = written["model_type"]
        refuse_lost(config, whole(Settings(written, name)), name)
        return written, names(config)

    return reading, writing


def refuse_lost(
    config: StackConfig, back: StackConfig, model_type: str, also: Iterable[str] = ()
) -> None:
    """LabError for the first setting that did not return; `also` are others that do not matter."""
    found = _material(back)
    for field, value in _material(config).items():
        if found[field] != value and field not in also:
            raise LabError(
                f"model.{field} = {value!r} has no place in a {model_type} model: "
                f"it needs {found[field]!r}"
            )


def read_fields(
    settings: Settings, model_type: str, architecture: str, fields: Fields, activations=ACTIVATIONS
) -> dict[str, Any]:
    """Our fields of a family's table; other architectures are refused."""
    settings.ignore([*IRRELEVANT, *GENERATION_KEYS])
    settings.fix(FIXED | {"model_type": (model_type,)})
    known = f"{architecture}ForCausalLM", f"{architecture}LMHeadModel", f"{architecture}Model"
    for name in settings.values.get("architectures") or []:
        if name not in known:
            raise settings.error("architectures", "only the language model is")
    return read_table(settings, fields, activations)


def read_table(settings: Settings, fields: Fields, activations=ACTIVATIONS) -> dict[str, Any]:
    """Our fields of a table."""
    readers = {bool: settings.flag, int: settings.integer, float: settings.number}
    readers[str] = partial(settings.choice, valid=activations)
    return {ours: readers[type(value)](key, value) for key, (ours, value) in fields.items()}


def write_fields(
    config: StackConfig,
    model_type: str,
    architecture: str,
    fields: Fields,
    activations=ACTIVATIONS,
) -> dict[str, Any]:
    """Their settings of a family's table."""
    written = {key: getattr(config, ours) for key, (ours, _) in fields.items()}
    # Of several names of one function the first.
    names = {ours: theirs for theirs, ours in reversed(activations.items())}
    for key, (_, default) in fields.items():
        if isinstance(default, str):
            if written[key] not in names:
                raise LabError(
                    f'model.activation = "{written[key]}" has no place in a {model_type} model'
                )
            written[key] = names[written[key]]
    head = {"model_type": model_type, "architectures": [architecture], "dtype": "float32"}
    return head | written


def head_dim(settings: Settings, key: str, width: int, heads: int) -> int:
    """The heads' even share of the width."""
    if width % heads:
        raise settings.error(key, f"the width {width} is not a multiple of it")
    return width // heads


def _material(config: StackConfig) -> dict[str, Any]:
    """The settings that a number may depend on, each in one spelling."""
    drop = set(IMMATERIAL)
    if config.positions != "rope":
        drop |= {name for name in asdict(config) if name.startswith("rope_")}
    if config.rope_scaling in ("none", "linear"):
        drop |= {"rope_original_length", "rope_low", "rope_high"}
    if config.rope_scaling == "none":
        drop.add("rope_factor")
    if config.norm == "rms_norm":
        drop.add("norm_bias")
    if config.norm_place != "pre":
        drop.add("final_norm")
    values = asdict(config) | {"kv_heads": config.key_value_heads, "rope_dims": config.turning_dims}
    return {name: value for name, value in values.items() if name not in drop}


def name_map(
    config: DecoderConfig,
    rules: Iterable[Rule],
    embedding: str,
    head: str = "lm_head.weight",
    **more: Any,
) -> NameMap:
    """A family's rules with those of embedding and head; files may hold a tied head too."""
    rules = [Rule("embedding/embedding", embedding, _table(config)), *rules]
    copies = {name: embedding if config.tie_head else head for name in {head, "lm_head.weight"}}
    if not config.tie_head:
        del copies[head]
        rules.append(Rule("head/embedding", head, _table(config)))
    return NameMap(tuple(rules), copies, **more)


def _table(config: DecoderConfig) -> Transform:
    """Rows that only fill our table up have no place in theirs."""
    real, fill = config.vocab_size, config.table_rows - config.vocab_size
    return Transform(lambda x: x[:real], lambda x: [np.pad(x, ((0, fill), (0, 0)))])


def joined(count: int) -> Transform:
    """Several of ours side by side along the last axis."""
    return Transform(
        lambda *parts: np.concatenate(parts, axis=-1), lambda x: np.split(x, count, axis=-1)
    )


def interleaved(heads: int, count: int = 3) -> Transform:
    """Rows of theirs are those of each part's first head, then of their second, and so on.

    Ours are kernels [D, N*H] or biases [N*H], theirs [N*count*H, D] or [N*count*H].
    """

    def to_theirs(*parts):
        split = [part.T.reshape(heads, -1, *part.T.shape[1:]) for part in parts]
        return np.stack(split, axis=1).reshape(-1, *parts[0].T.shape[1:])

    def to_ours(x):
        split = x.reshape(heads, count, -1, *x.shape[1:])
        return [split[:, i].reshape(-1, *x.shape[1:]).T for i in range(count)]

    return Transform(to_theirs, to_ours)


def query_key_value(attention: str, leaf: str) -> tuple[str, ...]:
    """Our three paths that one tensor of theirs packs."""
    return tuple(f"{attention}/{part}/{leaf}" for part in ("query", "key", "value"))
