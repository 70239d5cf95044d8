"""A record for each Hugging Face family, used both to import and to export models.

It lists the settings as a two-way table and the tensors' names, with functions for the rest. An
export is read back before it is written: a setting that comes back changed is refused."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from transformer_lab import models
from transformer_lab.errors import LabError
from transformer_lab.layers.block_config import ExpertsConfig, MixerConfig, mixer_of
from transformer_lab.layers.config import RELATIVE, StackConfig
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.pretrained.generation import GENERATION_KEYS, NO_TOKEN
from transformer_lab.pretrained.keys import ACTIVATIONS, UNSET, Settings, words
from transformer_lab.pretrained.names import NameMap, Shapes

# Their key -> (our setting, default). "mixer.state" is the setting `state` of `mixer`.
Fields = Mapping[str, tuple[str, Any]]
Tensors = Mapping[str, np.ndarray]
Found = dict[str, Any]  # our settings, by name
PARTS = {"mixer": MixerConfig, "experts": ExpertsConfig}  # settings that are configs themselves

# Keys that change no output in evaluation: names, versions, what is returned, training.
IRRELEVANT = words("""
    _attn_implementation _commit_hash _name_or_path _num_labels architectures attn_implementation
    chunk_size_feed_forward classif_dropout classifier_dropout decoder_layerdrop dtype
    encoder_layerdrop finetuning_task gradient_checkpointing id2label initializer_factor is_decoder
    label2id num_labels output_past prefix problem_type return_dict sep_token_id
    task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript
    transformers_version unk_token_id use_bfloat16
""")
FIXED = {  # other values ask for what no model here has
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": UNSET,
    "per_layer_config": (None, {}),
    "pruned_heads": (None, {}),
    "quantization_config": UNSET,
    "tie_encoder_decoder": (False,),
}
# Our settings that affect training or speed, but no output in evaluation.
IMMATERIAL = words("""
    attention_dropout attention_implementation depth_scaled_init drop_path dropout dtype dyt_alpha
    feed_forward_dropout head_dropout init_std kernel_init remat scan_layers vocab_multiple
""")
# The settings of experts that affect outputs in evaluation.
EXPERTS = words("count width top_k routing renormalize shared capacity_factor capacity router_bias")
BOTH = ("encoder_decoder", "whisper")  # kinds of models that have an encoder and a decoder
LABELLED = ("classes", "tokens")  # heads whose outputs have names


@dataclass(frozen=True)
class Family:
    """A Hugging Face family, the `FAMILY` of the file named as its `model_type`.

    `read` gets their settings, those of ours that the table gave, and the file's tensors. `write`
    and `names` get our config and the padding id. `read` may look at the values of tensors; when an
    export is read back, it gets distinct one-element arrays under the names to be written."""

    model_type: str
    kind: str  # of transformer_lab.models
    architectures: tuple[str, ...]  # class names that files may list; the first is written
    fields: Fields
    names: Callable[[Any, int], NameMap]
    constants: Mapping[str, Any] = field(default_factory=dict)  # our settings without a key there
    fixed: Mapping[str, Collection[Any]] = field(default_factory=dict)  # keys -> supported values
    ignored: Collection[str] = ()  # keys that change no output
    aliases: Mapping[str, str] = field(default_factory=dict)  # spellings that override a key's
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    read: Callable[[Settings, Found, Tensors], Found] = lambda settings, found, tensors: {}
    write: Callable[[Any, int], dict[str, Any]] = lambda config, pad: {}
    # Our settings that affect no output of a model with this config.
    idle: Callable[[Any], Collection[str]] = lambda config: ()
    pad: int = NO_TOKEN  # the padding id if the settings name none

    def reading(self, settings: Settings, tensors: Tensors) -> tuple[Any, NameMap]:
        """Our config and the name map for the given settings and tensors of a file."""
        config = self.config_of(settings, tensors)
        return config, self.names(config, padding(settings, self.pad))

    def config_of(self, settings: Settings, tensors: Tensors) -> Any:
        """Our config for the given Hugging Face settings.

        Raises: LabError for an unsupported value, and for a key that is not understood."""
        both = self.kind in BOTH
        for alias, name in self.aliases.items():
            if (value := settings.raw(alias)) is not None:
                settings.values[name] = value
        settings.ignore([*IRRELEVANT, *GENERATION_KEYS, *self.ignored])
        fixed = {"model_type": (self.model_type,), "is_encoder_decoder": (both,)}
        fixed |= {} if self.kind == "decoder" else {"is_decoder": (False,)}
        settings.fix(FIXED | fixed | self.fixed)
        for name in settings.values.get("architectures") or []:
            if name not in self.architectures:
                raise settings.error("architectures", f"only {', '.join(self.architectures)} is")
        found = dict(self.constants) | read_table(settings, self.fields, self.activations)
        found |= self.read(settings, found, tensors)
        if "heads" in found and "head_dim" not in found:
            found["head_dim"] = head_dim(settings, self.fields, found)
        settings.finish()
        return models.family(self.kind).CONFIG(**gathered(found))

    def writing(self, config: Any, pad: int = NO_TOKEN) -> tuple[dict[str, Any], NameMap]:
        """Hugging Face's settings of our config, without special tokens, and the name map.

        Raises: LabError for the first of our settings that the family cannot express."""
        pad = self.pad if pad == NO_TOKEN else pad
        written = {"model_type": self.model_type, "architectures": [self.architectures[0]]}
        written |= {"dtype": "float32"}
        written |= {"is_encoder_decoder": True} if self.kind in BOTH else {}
        written |= write_table(config, self.fields, self.activations, self.model_type)
        written |= self.write(config, pad)
        names = self.names(config, pad)
        theirs = (name for rule in names.rules for name in rule.names)
        marks = {name: np.full(1, i) for i, name in enumerate(theirs)}
        settings = Settings(written | {"pad_token_id": pad}, self.model_type)
        back, idle = _material(self.config_of(settings, marks)), self.idle(config)
        for name, value in _material(config).items():
            if back.get(name, value) != value and not {name, name.split(".")[0]} & {*idle}:
                raise LabError(
                    f"model.{name} = {value!r} has no place in a {self.model_type} model: "
                    f"it needs {back[name]!r}"
                )
        return written, names

    def shapes(self, config: Any) -> Shapes:
        """The shape of each parameter by its path, found without computing any values."""
        return _shapes(self.kind, config)


@cache
def _shapes(kind: str, config: Any) -> Shapes:
    flat = flatten_dict(models.parameter_shapes(kind, config), sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}


def read_table(settings: Settings, table: Fields, activations: Mapping[str, str]) -> Found:
    """Our settings for a table's keys; a default's type says what is read, str an activation."""
    readers = {bool: settings.flag, int: settings.integer, float: settings.number}
    readers[str] = partial(settings.choice, valid=activations)
    return {ours: readers[type(value)](key, value) for key, (ours, value) in table.items()}


def gathered(found: Found) -> Found:
    """Settings in which keys such as "mixer.state" are collected into one config for each part."""
    whole = {name: value for name, value in found.items() if "." not in name}
    for part, config in PARTS.items():
        own = {name.split(".")[1]: x for name, x in found.items() if name.startswith(f"{part}.")}
        whole |= {part: config(**own)} if own else {}
    return whole


def write_table(
    config: Any, table: Fields, activations: Mapping[str, str], model_type: str
) -> dict[str, Any]:
    """Hugging Face's settings for the keys of a table, from our config."""
    written = {key: attrgetter(ours)(config) for key, (ours, _) in table.items()}
    for key, (ours, default) in table.items():
        if isinstance(default, str):
            written[key] = activation_name(written[key], activations, ours, model_type)
    return written


def activation_name(
    name: str, activations: Mapping[str, str], setting: str, model_type: str
) -> str:
    """Hugging Face's name of an activation of ours. Raises: LabError if it has none."""
    if name not in activations.values():
        raise LabError(f'model.{setting} = "{name}" has no place in a {model_type} model')
    return next(theirs for theirs, ours in activations.items() if ours == name)


def head_dim(settings: Settings, table: Fields, found: Found) -> int:
    """The width of one head, if the heads share the model's width evenly; else raises LabError."""
    if found["width"] % found["heads"]:
        key = next(key for key, (ours, _) in table.items() if ours == "heads")
        raise settings.error(key, f"the width {found['width']} is not a multiple of it")
    return found["width"] // found["heads"]


def padding(settings: Settings, default: int) -> int:
    """The id of the padding token, or `default` if the settings name none."""
    value = settings.raw("pad_token_id", default)
    return value if type(value) is int and value >= 0 else default


def _material(config: Any, within: str = "") -> dict[str, Any]:
    """The settings that affect outputs, by name; equivalent settings get the same values."""
    values, drop = {entry.name: getattr(config, entry.name) for entry in fields(config)}, set()
    if isinstance(config, StackConfig):
        drop |= IMMATERIAL
        values |= {"kv_heads": config.key_value_heads, "rope_dims": config.turning_dims}
        if config.positions != "t5":
            drop |= {"relative_buckets", "relative_max_distance"}
        if config.positions != "rope":
            drop |= {name for name in values if name.startswith("rope_")}
        if config.rope_scaling in ("none", "linear"):
            drop |= {"rope_original_length", "rope_low", "rope_high"}
        if config.rope_scaling == "none":
            drop.add("rope_factor")
        if config.norm == "rms_norm":
            drop.add("norm_bias")
        if config.norm_place != "pre":
            drop |= {"final_norm", "final_norm_epsilon"}
    if isinstance(config, EncoderDecoderConfig):  # explicit, also where they equal the encoder's
        own = [name for name in values if name.startswith("decoder_")]
        values |= {name: getattr(config.decoder, name.removeprefix("decoder_")) for name in own}
        values["decoder_kv_heads"] = config.decoder.key_value_heads
        values["source_vocab_size"] = config.source_vocab_size or config.vocab_size
    if isinstance(config, StackConfig):
        values |= _layers(config, drop)
        if config.positions in RELATIVE and "attention_bias" in drop:  # no layer attends
            values["positions"] = "none"
    found = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= {f"{within}{name}.{part}": entry for part, entry in value.items()}
        elif is_dataclass(value):
            found |= _material(value, f"{within}{name}.")
        elif name not in drop:
            found[f"{within}{name}"] = value
    return found


def _layers(config: StackConfig, drop: set[str]) -> dict[str, Any]:
    """Settings of the layers' parts that affect outputs; equivalent settings get the same values.

    Adds to `drop` the names of settings that only parts read which no layer has."""
    both = isinstance(config, EncoderDecoderConfig)
    stacks = {"layer_kinds": config} | ({"decoder_layer_kinds": config.decoder} if both else {})
    each = {name: stack.each_layer() for name, stack in stacks.items()}
    every = [layer for layers in each.values() for layer in layers]
    window = lambda one: one.window if one.mixer.kind == "attention" else 0  # noqa: E731
    kinds = {
        name: tuple((one.mixer.kind, one.feed_forward, window(one)) for one in layers)
        for name, layers in each.items()
    }
    alike = len({kind for named in kinds.values() for kind in named}) == 1
    values: dict[str, Any] = dict.fromkeys(kinds, ()) if alike else kinds
    values |= {"mixer": {}, "experts": {}, "window": max(map(window, every))}
    if alike:
        values |= {"feed_forward": every[0].feed_forward, "mixer": {"kind": every[0].mixer.kind}}
    else:
        drop.add("feed_forward")
    mixers, forwards = {one.mixer.kind for one in every}, {one.feed_forward for one in every}
    others = [mixer_of(kind) for kind in mixers - {"attention"}]
    for name in (name for mixer in others for name in mixer.SETTINGS):
        values["mixer"][name] = getattr(config.mixer, name)
    if "mamba" in mixers and config.mixer.inner_norms:
        values["mixer"]["norm_epsilon"] = config.mixer.norm_epsilon
    if "attention" not in mixers:
        drop |= {"attention_bias", "qkv_bias", "key_bias", "scale_attention", "window"}
    if "attention" not in mixers and not any(mixer.HEADED for mixer in others):
        drop |= {"heads", "kv_heads", "head_dim"}
    shared = "experts" in forwards and config.experts.shared
    if "experts" in forwards:
        values["experts"] = {name: getattr(config.experts, name) for name in EXPERTS}
        values["experts"]["width"] = config.experts.width or config.feed_forward_width
        values["experts"]["activation"] = config.experts.activation or config.activation
        if config.experts.capacity:
            values["experts"]["capacity_factor"] = 0.0
        if config.experts.capacity >= config.max_length:
            values["experts"]["capacity"] = 0
    if not forwards & {"dense", "experts"}:
        drop.add("activation")
    if not (forwards & {"dense"} or shared):
        drop.add("feed_forward_bias")
    if not forwards & {"dense", "shifted"}:
        drop.add("feed_forward_width")
    if config.halved_every > config.layers:
        values["halved_every"] = 0
    values["final_norm_epsilon"] = config.final_norm_epsilon or config.norm_epsilon
    return values


def label_names(settings: Settings) -> list[str]:
    """The labels in the order of the outputs, LABEL_0, LABEL_1 and so on if they are unnamed."""
    count, table = settings.values.get("num_labels"), settings.values.get("id2label")
    if table is None:
        return [f"LABEL_{i}" for i in range(2 if count is None else count)]
    ids = {str(i): name for i, name in table.items()}
    order = [str(i) for i in range(len(ids))]
    if sorted(order) != sorted(ids) or count not in (None, len(ids)):
        raise LabError(
            f"{settings.file}: id2label must number its {count or len(ids)} labels from 0"
        )
    return [str(ids[i]) for i in order]


def label_settings(labels: Sequence[str] | int) -> dict[str, Any]:
    """Hugging Face's settings for the labels, or for their number if they have no names."""
    names = [f"LABEL_{i}" for i in range(labels)] if isinstance(labels, int) else labels
    numbered = dict(enumerate(names))
    tables = {
        "id2label": {str(i): name for i, name in numbered.items()},
        "label2id": {name: i for i, name in numbered.items()},
    }
    return tables if numbered else {}
