"""Speech recognition on synthetic voices: a small Conformer with CTC, from scratch on a CPU.

python -m transformer_lab train --config=configs/asr_espeak.py --workdir=runs/asr

15,610 sentences of Brown, spoken by eSpeak NG in 5 accents and 63 voices; 8 other voices speak the
355 test sentences. `:joint` adds an attention decoder, `:transformer` and `:bilstm` have as many
parameters as the Conformer. `:prompts` goes on with real recordings of a telephone exchange:

python -m transformer_lab train --config=configs/asr_espeak.py:prompts --workdir=runs/prompts \
  --init_from=runs/asr

2026-11-29, 2 cores (AMD EPYC) shared with other work: the 4,000 steps take 37 minutes of one core's
time; 8.3 % of the test sentences' characters are wrong (greedy), and 5.8 % with
--config.ctc.method=beam --config.ctc.beam_size=16 --config.ctc.ngram_order=8
--config.ctc.ngram_weight=0.6 --config.ctc.length_bonus=0.8 (15.2 and 10.8 % after 1,100 steps).
2026-11-30: `:joint`, 600 steps in 7 minutes: 22.0 %, with --config.ctc.method=joint 20.6 %.
"""

from ml_collections import ConfigDict

from transformer_lab.errors import known
from transformer_lab.models import costs
from transformer_lab.models.conformer import ConformerConfig
from transformer_lab.training.config import default_config

SIZES = {
    "layers": 4, "width": 144, "heads": 3, "head_dim": 48, "feed_forward_width": 384,
    "convolution_width": 15, "channels": 16, "bins": 40, "dropout": 0.05, "scan_layers": True,
}  # fmt: skip
PLAIN = {"block": "serial", "convolution_width": 0}
# What differs from the Conformer, and the setting that makes the parameters as many
NETS = {
    "conformer": ({}, ""),
    "joint": ({"decodes": True, "decoder_layers": 2}, ""),
    "transformer": (PLAIN, "feed_forward_width"),
    "bilstm": ({"recurrent_width": 144, "layers": 2, "scan_layers": False}, "recurrent_width"),
}


def get_config(arg: str = "conformer") -> ConfigDict:
    """`arg` is a net, or prompts: the Conformer on real recordings, for --init_from."""
    known("configs/asr_espeak.py:", arg, (*NETS, "prompts"))
    config = default_config(model="conformer", task="ctc")
    config.update(steps=4000, eval_every=1000, save_every=200)
    config.data.update(source="espeak", validation_share=0.02, test_share=0.03)
    config.tokenizer.update(kind="char", vocab_size=64)
    config.batch.update(tokens_per_batch=8192, max_length=600, buckets=3, rows_multiple=4)
    config.augment.update(frequency_width=6, time_masks=2)
    config.model.update(sizes(arg))
    config.optimizer.update(
        name="muon",
        learning_rate=1e-2,
        warmup_steps=200,
        schedule="linear",
        weight_decay=0.1,
        clip_norm=1.0,
    )
    if arg == "prompts":
        config.update(steps=200, eval_every=100, save_every=100)
        config.data.update(source="asterisk", validation_share=0.1, test_share=0.2)
        config.optimizer.update(learning_rate=3e-3, warmup_steps=20)
        config.batch.buckets = 2
    return config


def sizes(net: str) -> dict[str, object]:
    """The settings of a net's model, with about as many parameters as the Conformer."""
    changes, free = NETS.get(net, NETS["conformer"])
    found = {**SIZES, **changes}
    if free:
        count = lambda some: costs.parameters("conformer", ConformerConfig(**some, vocab_size=32))  # noqa: E731
        near = lambda width: ConformerConfig(**{**found, free: width}, vocab_size=32)  # noqa: E731
        found[free] = costs.width_near("conformer", near, count(SIZES))
    return found
