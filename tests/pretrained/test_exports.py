"""What a family can hold is read back as it was written, and what it cannot is refused."""

import json
from dataclasses import replace

import pytest

from tests.pretrained.fixtures import load, random_params, same_trees
from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.layers.block_config import ExpertsConfig, MixerConfig
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.models.presets.encoder_decoders import BART, T5, T5_1_1
from transformer_lab.pretrained import model_type_of
from transformer_lab.pretrained.generation import SpecialIds

SMALL = {"layers": 1, "width": 8, "heads": 2, "head_dim": 4, "vocab_size": 11, "max_length": 12}
BOTH = {"layers": 2, "width": 12, "heads": 3, "head_dim": 4, "feed_forward_width": 10}
BOTH |= {"vocab_size": 17, "max_length": 9}
DECODER = DecoderConfig(**SMALL, feed_forward_width=32)
ENCODER = EncoderConfig(**SMALL | {"max_length": 6}, feed_forward_width=12)
BART, T5, T5_1_1 = (replace(config, **BOTH) for config in (BART, T5, T5_1_1))
MARIAN = EncoderDecoderConfig(
    **SMALL,
    feed_forward_width=6,
    decoder_layers=2,
    decoder_heads=4,
    decoder_head_dim=2,
    decoder_feed_forward_width=10,
    norm_epsilon=1e-5,
    positions="sinusoidal_halves",
)
LLAMA = {"norm": "rms_norm", "activation": "swiglu", "positions": "rope", "attention_bias": False}
LLAMA |= {"feed_forward_bias": False, "kv_heads": 1, "tie_head": False}
MIXTRAL = LLAMA | {"feed_forward": "experts", "experts": ExpertsConfig(count=3, width=10)}
FREE = {"positions": "none", "norm": "rms_norm", "feed_forward": "none", "tie_head": True}
SPACE = {"inner_width": 24, "state": 3, "step_rank": 2, "convolution": 3}
MAMBA = FREE | {"mixer": MixerConfig("mamba", **SPACE, bias=True)}
# Settings that such a model does not read are none that a family would have to hold.
IDLE = {"heads": 1, "window": 2, "activation": "swiglu", "feed_forward_width": 7, "kv_heads": 1}
IDLE |= {"experts": ExpertsConfig(count=2, top_k=1), "max_length": 99, "qkv_bias": False}
UNREAD = MixerConfig("mamba", **SPACE, way="steps", chunk=3, state_heads=5, feature_map="relu")
GROUPED = {"state_heads": 4, "state_groups": 2, "step_low": 0.1, "step_high": 2.0}
RWKV = {"positions": "none", "feed_forward": "shifted", "embedding_norm": True, "tie_head": False}
RWKV |= {"mixer": MixerConfig("rwkv", inner_width=6), "halved_every": 1}
HYBRID = LLAMA | {"positions": "none", "layers": 4, "tie_head": True, "feed_forward_width": 9}
HYBRID |= {"experts": ExpertsConfig(count=3, renormalize=False), "norm_epsilon": 1e-5}
HYBRID |= {"mixer": MixerConfig(**SPACE, inner_norms=True, convolution_bias=False)}
PERIOD = ("mamba/experts", "mamba/dense", "attention/experts", "mamba/dense")
SPARSE = {"decoder_layers": 3, "feed_forward_dropout": 0.0}
SPARSE |= {"layer_kinds": ("full/dense", "full/experts")}
SPARSE |= {"decoder_layer_kinds": ("full/experts",) * 3, "experts": ExpertsConfig(
    count=3, top_k=1, renormalize=False, capacity=2, balance_loss=0.001, router_bias=True
)}  # fmt: skip
TANH = {"activation": "gelu_tanh"}
LEARNED = {"positions": "learned"} | TANH
APART = {"tie_source_target": False, "source_vocab_size": 13}
UNTIED = {"tie_head": False}


@pytest.mark.parametrize(
    ("config", "changes", "model_type"),
    [
        (DECODER, {}, "gpt2"),
        (DECODER, {"positions": "alibi", "embedding_norm": True}, "bloom"),
        (DECODER, {"positions": "rope", "rope_dims": 2, "block": "parallel_two_norms"}, "gpt_neox"),
        (DECODER, LLAMA, "llama"),
        (DECODER, LLAMA | {"window": 3}, "mistral"),
        (DECODER, {"embedding_width": 4, "activation": "relu"}, "opt"),
        (DECODER, MIXTRAL | {"window": 3}, "mixtral"),
        (DECODER, MAMBA, "mamba"),
        (DECODER, FREE | IDLE | {"mixer": UNREAD}, "mamba"),
        (DECODER, FREE | {"mixer": MixerConfig("mamba2", **SPACE | GROUPED)}, "mamba2"),
        (DECODER, RWKV | {"final_norm_epsilon": 1e-5, "norm_epsilon": 1e-4}, "rwkv"),
        (DECODER, HYBRID | {"layer_kinds": PERIOD}, "jamba"),
        (DECODER, HYBRID | {"layer_kinds": PERIOD[1:2]}, "jamba"),
        (DECODER, HYBRID | {"layer_kinds": ("attention/experts",)}, "jamba"),
        (T5, SPARSE, "switch_transformers"),
        (T5, SPARSE | {"tie_head": False, "scale_output": False}, "switch_transformers"),
        (T5, SPARSE | {"layer_kinds": ("full/dense",) * 2}, "switch_transformers"),
        (DECODER, {"vocab_multiple": 8, "tie_head": False}, "gpt2"),
        (ENCODER, {"head": "mlm", "pooler": False}, "bert"),
        (ENCODER, {"head": "tokens", "labels": 4, "activation": "relu"}, "bert"),
        (ENCODER, {"types": 1, "head": "classes", "labels": 1}, "roberta"),
        (ENCODER, {"types": 0, "head": "classes", "pooler_activation": "relu"}, "distilbert"),
        (T5, {"head_dim": 5, "decoder_layers": 1}, "t5"),
        (T5_1_1, {"relative_buckets": 10, "activation": "reglu"}, "t5"),
        (BART, {"decoder_heads": 2, "decoder_head_dim": 6, "head_bias": True}, "bart"),
        (BART, {"tie_head": False, "tie_source_target": False}, "bart"),
        *((MARIAN, TANH | {"head_bias": True} | a | b, "marian") for a in ({}, APART)
          for b in ({}, UNTIED)),
        *((MARIAN, LEARNED | a | b, "marian") for a in ({}, APART) for b in ({}, UNTIED)),
    ],
)  # fmt: skip
def test_export_then_import_gives_the_same_model(tmp_path, config, changes, model_type):
    config = replace(config, **changes)
    kind = pretrained.family(model_type).kind
    if kind != "encoder_decoder":
        assert model_type_of(kind, config) == model_type
    params, out = random_params(model_type, config), tmp_path / "out"
    special = SpecialIds(pad=3, eos=1, start=2)  # RoBERTa's positions begin behind the padding
    pretrained.export(params, config, out, special, model_type=model_type)
    model = pretrained.load(out)
    assert model.special == special
    for table in ("embedding", "head"):  # rows that only fill the table up are not written
        if table in params and kind == "decoder":
            params[table]["embedding"] = params[table]["embedding"][:11]
    assert same_trees(model.params, params)
    written = json.loads((out / "config.json").read_text())
    if kind == "encoder":
        assert model.config.max_length == 6
        assert written["max_position_embeddings"] == (10 if model_type == "roberta" else 6)
        regression = "regression" if config.labels == 1 else None
        assert written.get("problem_type") == regression
    if model_type == "marian":
        assert model.config == config
    elif kind == "encoder_decoder":
        unlike = {"kernel_init": config.kernel_init, "max_length": config.max_length}
        assert replace(model.config, **unlike).decoder == config.decoder
        for field in ("tie_head", "scale_output"):
            assert getattr(model.config, field) == getattr(config, field)


LOST = [  # a model of ours, the family that cannot hold it, words of the refusal
    (DECODER, {"norm_place": "post"}, "gpt2", "model.norm_place = 'post' has no place in a gpt2"),
    (DECODER, {"mask": "prefix"}, "gpt2", "model.mask = 'prefix'"),
    (DECODER, {"head_bias": True}, "gpt2", "model.head_bias = True"),
    (DECODER, {"embedding_scale": True}, "gpt2", "model.embedding_scale = True"),
    (DECODER, {"kv_heads": 1}, "gpt2", "model.kv_heads = 1"),
    (DECODER, {"activation": "swiglu"}, "gpt2", 'model.activation = "swiglu"'),
    (DECODER, LLAMA | {"window": 3}, "llama", "model.window = 3"),
    (DECODER, LLAMA | {"rope_interleaved": True}, "llama", "model.rope_interleaved = True"),
    (DECODER, LLAMA | {"rope_attention_factor": 2.0}, "llama", "rope_attention_factor = 2.0"),
    (DECODER, LLAMA | {"activation": "relu"}, "llama", 'model.activation = "relu"'),
    (DECODER, {"positions": "alibi"}, "bloom", "model.embedding_norm = False"),
    (DECODER, {"norm_epsilon": 1e-6}, "opt", "model.norm_epsilon = 1e-06"),
    (DECODER, {"norm": "dyt"}, "", "gpt2 model.* opt model"),
    (DECODER, {"feed_forward": "experts"}, "gpt2", "model.feed_forward = 'experts'"),
    (DECODER, {"layer_kinds": ("attention", "mamba"), "layers": 2}, "gpt2", "model.layer_kinds"),
    (DECODER, MIXTRAL | {"experts": ExpertsConfig(shared=1)}, "mixtral", "experts.shared = 1"),
    (DECODER, MIXTRAL | {"experts": ExpertsConfig(renormalize=False)}, "mixtral", "renormalize"),
    (DECODER, MIXTRAL | {"experts": ExpertsConfig(capacity=2)}, "mixtral", "experts.capacity = 2"),
    (DECODER, MIXTRAL | {"experts": ExpertsConfig(activation="gelu")}, "mixtral", "activation"),
    (DECODER, FREE | {"mixer": MixerConfig("mamba", inner_width=20)}, "mamba", "inner_width = 20"),
    (DECODER, FREE | {"mixer": MixerConfig("s4d")}, "mamba", "model.mixer.kind = 's4d'"),
    (DECODER, RWKV | {"norm_epsilon": 1e-6}, "rwkv", "model.final_norm_epsilon = 1e-06"),
    (
        DECODER,
        HYBRID | {"layer_kinds": ("mamba/dense", "mamba/experts", "mamba/experts")},
        "jamba",
        "model.layer_kinds",
    ),
    (
        T5,
        SPARSE | {"layer_kinds": ("full/experts", "full/dense")},
        "switch_transformers",
        "model.layer_kinds",
    ),
    (DECODER, {}, "marian", '--model_type="marian" is none of bloom, gpt2'),
    (ENCODER, {"norm_place": "pre"}, "bert", "model.norm_place = 'pre' has no place in a bert"),
    (ENCODER, {"positions": "rope"}, "bert", "model.positions = 'rope'"),
    (ENCODER, {"pooler_activation": "relu"}, "bert", "model.pooler_activation = 'relu'"),
    (ENCODER, {"head": "classes", "pooler": False}, "bert", "model.pooler = False"),
    (ENCODER, {"head": "mlm", "mlm_activation": "relu"}, "bert", "model.mlm_activation = 'relu'"),
    (ENCODER, {"embedding_norm": False}, "roberta", "model.embedding_norm = False"),
    (ENCODER, {"head": "mlm_nsp"}, "roberta", "architectures"),
    (ENCODER, {"types": 0, "norm_epsilon": 1e-6}, "distilbert", "model.norm_epsilon = 1e-06"),
    (ENCODER, {"types": 2}, "distilbert", "model.types = 2"),
    (ENCODER, {}, "gpt2", '--model_type="gpt2" is none of bert, distilbert, roberta'),
    (T5, {"norm": "layer_norm"}, "t5", "model.norm = 'layer_norm' has no place in a t5 model"),
    (T5, {"positions": "sinusoidal"}, "t5", "model.positions = 'sinusoidal'"),
    (T5, {"scale_attention": True}, "t5", "model.scale_attention = True"),
    (T5, {"head_bias": True}, "t5", "model.head_bias = True"),
    (T5, {"decoder_heads": 2}, "t5", "model.decoder_heads = 2"),
    (T5, {"embedding_scale": True}, "t5", "model.embedding_scale = True"),  # and the output's
    (T5, {"norm_bias": True, "norm": "dyt"}, "t5", "model.norm = 'dyt'"),
    (BART, {"positions": "sinusoidal"}, "bart", "model.positions = 'sinusoidal'"),
    (BART, {"norm_place": "pre"}, "bart", "model.norm_place = 'pre'"),
    (BART, {"head_dim": 5}, "bart", "3 heads of 5"),
    (BART, {"embedding_norm": False}, "bart", "model.embedding_norm = False"),
    (BART, {"tie_source_target": False}, "bart", "model.tie_source_target = False"),
    (BART, {}, "marian", "model.embedding_norm = True"),
    (MARIAN, {"norm_place": "pre"}, "marian", "model.norm_place = 'pre'"),
    (MARIAN, {"norm_epsilon": 1e-6}, "marian", "model.norm_epsilon = 1e-06"),
    (MARIAN, {"positions": "sinusoidal"}, "marian", "model.positions = 'sinusoidal'"),
    (MARIAN, {"activation": "swiglu"}, "marian", 'model.activation = "swiglu"'),
    (MARIAN, {"kv_heads": 1}, "marian", "the encoder's 2 heads of 4 with 1"),
    (MARIAN, {"decoder_head_dim": 4}, "marian", "the decoder's 4 heads of 4"),
    (MARIAN, {"attention_bias": False}, "marian", "model.attention_bias = False"),
    (MARIAN, {"window": 3}, "marian", "model.window = 3"),
    ("vit_classes", {"pooling": "mean"}, "vit", "model.pooling .*vit"),
    ("vit_classes", {"distillation": "token"}, "vit", "model.distillation .*vit"),
    ("vit_classes", {"embedding_norm": True}, "vit", "model.embedding_norm .*vit"),
    ("vit_classes", {"positions": "sincos2d"}, "vit", "model.positions .*vit"),
    ("vit_classes", {"activation": "swiglu"}, "vit", "model.activation .*vit"),
    ("vit_classes", {"pre_logits": 4}, "vit", "model.pre_logits .*vit"),
    ("vit_classes", {"layer_scale": 0.1}, "vit", "model.layer_scale .*vit"),
    ("dinov2_classes", {"pooling": "class"}, "dinov2", "model.pooling .*dinov2"),
    ("dinov2", {"activation": "reglu"}, "dinov2", "model.activation .*dinov2"),
    ("clip", {"image.pooling": "mean"}, "clip", "model.image.pooling"),
    ("clip", {"text.norm": "rms_norm"}, "clip", "model.text.norm"),
    ("clip", {"text_bias": True}, "clip", "model.text_bias"),
]


@pytest.mark.parametrize(("config", "changes", "model_type", "named"), LOST)
def test_what_a_family_cannot_hold_is_not_exported(changes, config, model_type, named, tmp_path):
    config = load(config).config if isinstance(config, str) else config
    for key, value in changes.items():
        outer, _, inner = key.rpartition(".")
        part = {inner: value}
        config = replace(
            config, **{outer: replace(getattr(config, outer), **part)} if outer else part
        )
    kinds = {DecoderConfig: "decoder", EncoderConfig: "encoder"}
    with pytest.raises(LabError, match=named) as error:
        if type(config) in kinds:
            model_type_of(kinds[type(config)], config, model_type)
        else:
            special = SpecialIds(pad=0, eos=1, start=2)
            pretrained.export({}, config, tmp_path / "out", special, None, model_type)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


TRIAL = '''
"""A decoder of another house: GPT-2's layers under other names."""

from dataclasses import replace

from transformer_lab.pretrained import gpt2
from transformer_lab.pretrained.decoders import architectures, name_map
from transformer_lab.pretrained.names import JOINED, Rule, packed

LAYER = {
    "attention_norm": "norm_1", "attention/out": "mix.out", "feed_forward_norm": "norm_2",
    "feed_forward/up": "up", "feed_forward/down": "down",
}


def names(config, pad):
    rules = packed("decoder/layer_{i}/attention", "blocks.{i}.mix.in.", JOINED)
    rules.append(Rule("positions/embedding", "places.weight"))
    return name_map(config, "words.weight", "blocks", LAYER, "norm", *rules)


FAMILY = replace(
    gpt2.FAMILY,
    model_type="trial",
    architectures=architectures("Trial"),
    fields={
        **{k: v for k, v in gpt2.FAMILY.fields.items() if k not in ("n_embd", "n_layer")},
        "dim": ("width", 64),
        "depth": ("layers", 2),
    },
    names=names,
    fixed={"gated": (False,)},
)
'''


def test_one_more_family_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "trial.py").write_text(TRIAL)
    monkeypatch.setattr(pretrained, "__path__", [*pretrained.__path__, str(tmp_path)])
    assert "trial" in pretrained.families()
    params, special = random_params("trial", DECODER), SpecialIds(pad=0, eos=1, start=2)
    pretrained.export(params, DECODER, tmp_path / "out", special, model_type="trial")
    model = pretrained.load(tmp_path / "out")
    assert same_trees(model.params, params) and model.special == special
    config = tmp_path / "out" / "config.json"
    written = json.loads(config.read_text())
    assert (written["dim"], written["depth"]) == (8, 1)
    assert written["architectures"] == ["TrialForCausalLM"]
    config.write_text(json.dumps(written | {"gated": True}))
    with pytest.raises(LabError, match="gated = true is not supported: only false is"):
        pretrained.load(tmp_path / "out")
    with pytest.raises(LabError, match="model.window = 3 has no place in a trial model"):
        pretrained.export(
            params, replace(DECODER, window=3), tmp_path / "x", special, None, "trial"
        )
