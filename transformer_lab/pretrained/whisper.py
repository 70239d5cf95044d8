"""Whisper (Radford 2023), as in Hugging Face's `whisper`."""

from typing import Any

from transformer_lab.models.whisper import WhisperConfig
from transformer_lab.pretrained import marian
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.keys import words
from transformer_lab.pretrained.names import NameMap, Rule, dense, layers, norm

TABLE, HEAD = "model.decoder.embed_tokens.weight", "proj_out.weight"


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    width, heads = found["width"], found["decoder_heads"]
    if width % heads:
        raise settings.error(
            "decoder_attention_heads", f"d_model = {width} is not a multiple of it"
        )
    return {
        "decoder_head_dim": width // heads,
        "frames": 2 * settings.integer("max_source_positions", 1500),
    }


def _write(config: WhisperConfig, pad: int) -> dict[str, Any]:
    return marian.write_sizes(config, "whisper") | {"max_source_positions": config.states}


def _names(config: WhisperConfig, pad: int) -> NameMap:
    rules = [
        *dense("convolution_1", "model.encoder.conv1"),
        *dense("convolution_2", "model.encoder.conv2"),
        Rule("frame_positions", "model.encoder.embed_positions.weight"),
        Rule("target_embedding/embedding", TABLE),
        Rule("target_positions/embedding", "model.decoder.embed_positions.weight"),
    ]
    for stack, parts in (("encoder", marian.LAYER), ("decoder", marian.LAYER | marian.CROSS)):
        rules += layers(config, stack, f"model.{stack}.layers", parts)
        rules += norm(f"{stack}/final_norm", f"model.{stack}.layer_norm")
    if not config.tie_head:
        rules.append(Rule("head/embedding", HEAD))
    copies = {HEAD: TABLE} if config.tie_head else {}
    return NameMap(tuple(rules), copies, prefix="model.")


FAMILY = Family(
    "whisper",
    "whisper",
    ("WhisperForConditionalGeneration", "WhisperModel"),
    {
        "vocab_size": ("vocab_size", 51865),
        "num_mel_bins": ("bins", 80),
        "max_target_positions": ("max_length", 448),
        "d_model": ("width", 384),
        "encoder_layers": ("layers", 4),
        "encoder_attention_heads": ("heads", 6),
        "encoder_ffn_dim": ("feed_forward_width", 1536),
        "decoder_layers": ("decoder_layers", 4),
        "decoder_attention_heads": ("decoder_heads", 6),
        "decoder_ffn_dim": ("decoder_feed_forward_width", 1536),
        "activation_function": ("activation", "gelu"),
        "dropout": ("dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
        "activation_dropout": ("feed_forward_dropout", 0.0),
        "init_std": ("init_std", 0.02),
        "tie_word_embeddings": ("tie_head", True),
    },
    _names,
    constants={
        "norm_place": "pre",
        "norm_epsilon": 1e-5,
        "key_bias": False,
        "positions": "learned",
    },
    # Their embeddings are never scaled, whatever `scale_embedding` says; the rest is of training,
    # of classifiers of audio, and of the times of words.
    ignored=words("""
        apply_spec_augment classifier_proj_size forced_decoder_ids mask_feature_length
        mask_feature_min_masks mask_feature_prob mask_time_length mask_time_min_masks
        mask_time_prob median_filter_width num_hidden_layers scale_embedding
        use_weighted_layer_sum
    """),
    read=_read,
    write=_write,
)
