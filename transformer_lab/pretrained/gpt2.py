"""GPT-2 (Radford 2019), as in Hugging Face's `gpt2`."""

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.decoders import name_map
from transformer_lab.pretrained.keys import words
from transformer_lab.pretrained.names import JOINED, SAME, NameMap, Rule, packed

LAYER = {
    "attention_norm": "ln_1",
    "attention/out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward/up": "mlp.c_fc",
    "feed_forward/down": "mlp.c_proj",
}


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    return {"feed_forward_width": settings.integer("n_inner", None) or 4 * found["width"]}


def _names(config: DecoderConfig, pad: int) -> NameMap:
    layer = "transformer.h.{i}"
    body = "transformer.wte.weight", "transformer.h", LAYER, "transformer.ln_f"
    rules = packed("decoder/layer_{i}/attention", f"{layer}.attn.c_attn.", JOINED)
    rules.append(Rule("positions/embedding", "transformer.wpe.weight"))
    buffers = frozenset([f"{layer}.attn.bias", f"{layer}.attn.masked_bias"])
    return name_map(config, *body, *rules, kernel=SAME, unused=buffers)  # kernels are [in, out] too


FAMILY = Family(
    "gpt2",
    "decoder",
    ("GPT2LMHeadModel", "GPT2Model", "GPT2ForCausalLM"),
    {
        "vocab_size": ("vocab_size", 50257),
        "n_positions": ("max_length", 1024),
        "n_embd": ("width", 768),
        "n_layer": ("layers", 12),
        "n_head": ("heads", 12),
        "activation_function": ("activation", "gelu_new"),
        "layer_norm_epsilon": ("norm_epsilon", 1e-5),
        "scale_attn_weights": ("scale_attention", True),
        "tie_word_embeddings": ("tie_head", True),
        "resid_pdrop": ("dropout", 0.1),
        "attn_pdrop": ("attention_dropout", 0.1),
        "initializer_range": ("init_std", 0.02),
    },
    _names,
    constants={"positions": "learned"},
    fixed={"scale_attn_by_inverse_layer_idx": (False,)},
    # The order of a product, n_positions' older name, dropout, and other heads.
    ignored=words("""
        embd_pdrop n_ctx predict_special_tokens reorder_and_upcast_attn summary_activation
        summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    """),
    read=_read,
    write=lambda config, pad: {"n_inner": config.feed_forward_width},
)
