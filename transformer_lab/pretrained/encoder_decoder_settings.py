"""What the settings of the encoder-decoder families share."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from transformer_lab.errors import LabError
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.pretrained import decoder_settings
from transformer_lab.pretrained.generation import GENERATION_KEYS
from transformer_lab.pretrained.keys import Settings, words

# They change no number in evaluation, or a family's module reads them.
IRRELEVANT = decoder_settings.IRRELEVANT | words("""
    classif_dropout classifier_dropout decoder_layerdrop encoder_layerdrop initializer_factor
    output_past tf_legacy_loss
""")
FIXED = decoder_settings.FIXED | {"is_encoder_decoder": (True,), "is_decoder": (False,)}


def check_kind(
    settings: Settings, model_types: tuple[str, ...], architectures: Iterable[str]
) -> None:
    """Refuses other models; what changes no number is accounted for."""
    settings.ignore([*IRRELEVANT, *GENERATION_KEYS])
    settings.fix(FIXED | {"model_type": model_types})
    for name in settings.values.get("architectures") or []:
        if name not in architectures:
            raise settings.error("architectures", f"only {' or '.join(architectures)} is")


def refuse_lost(
    config: EncoderDecoderConfig,
    back: EncoderDecoderConfig,
    model_type: str,
    also: Iterable[str] = (),
) -> None:
    """LabError for the first setting that did not return from an export's settings."""
    decoder_settings.refuse_lost(_spelled(config), _spelled(back), model_type, also)


def _spelled(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """The decoder's settings as numbers, also where they are the encoder's."""
    names = [name for name in vars(config) if name.startswith("decoder_")]
    own = {name: getattr(config.decoder, name.removeprefix("decoder_")) for name in names}
    return replace(config, **own | {"decoder_kv_heads": config.decoder.key_value_heads})


def differ(tensors: Mapping[str, np.ndarray], *names: str) -> bool:
    """Whether the named tensors that a file has are not all equal."""
    found = [tensors[name] for name in names if name in tensors]
    return any(not np.array_equal(found[0], other) for other in found[1:])


def read_sizes(settings: Settings) -> dict[str, int]:
    """Width, and layers, heads and feed-forward of both stacks."""
    width = _alias(settings, "d_model", "hidden_size", 1024)
    sizes = {"width": width}
    for stack, prefix in (("encoder", ""), ("decoder", "decoder_")):
        encoder = stack == "encoder"
        name = f"{stack}_attention_heads"
        heads = _alias(settings, name, "num_attention_heads" if encoder else None, 16)
        if width % heads:
            raise settings.error(name, f"d_model = {width} is not a multiple of it")
        layers = _alias(settings, f"{stack}_layers", "num_hidden_layers" if encoder else None, 12)
        sizes |= {
            f"{prefix}layers": layers,
            f"{prefix}heads": heads,
            f"{prefix}head_dim": width // heads,
            f"{prefix}feed_forward_width": settings.integer(f"{stack}_ffn_dim", 4096),
        }
    return sizes


def _alias(settings: Settings, name: str, alias: str | None, default: int) -> int:
    """Their general name may stand for Marian's own, or beside it with the same value."""
    general = settings.integer(alias, None) if alias else None
    value = settings.integer(name, general or default)
    if general not in (None, value):
        raise settings.error(alias, f"{name} = {value} says otherwise")
    return value


def write_sizes(config: EncoderDecoderConfig, family: str) -> dict[str, int]:
    """Their settings of width, layers, heads and feed-forward of both stacks."""
    hf = {"d_model": config.width}
    for side, stack in (("encoder", config), ("decoder", config.decoder)):
        if stack.key_value_heads != stack.heads or stack.heads * stack.head_dim != stack.width:
            raise LabError(
                f"the {side}'s {stack.heads} heads of {stack.head_dim} with {stack.key_value_heads}"
                f" for keys and values have no place in a {family} model of width {stack.width}"
            )
        hf[f"{side}_layers"] = stack.layers
        hf[f"{side}_attention_heads"] = stack.heads
        hf[f"{side}_ffn_dim"] = stack.feed_forward_width
    return hf
