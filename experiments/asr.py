"""Is the Conformer better than a transformer and LSTMs of as many parameters?

python -m transformer_lab sweep --experiment=experiments/asr.py --workdir=runs/asr_nets

Gulati 2020, table 2: on LibriSpeech the Conformer has fewer word errors than the Transformer
Transducer and than LSTMs, with fewer parameters; table 3: most of it is due to the convolution.
Here each net has 1.6 million parameters and hears the same synthetic voices (see
`configs/asr_espeak.py`); two more rows are the Conformer without its convolution, and without the
half-step feed-forwards and their norm. The score is the character error rate of held-out voices.

Scale cpu: 600 steps, one seed, planned for 5 runs of 8 minutes on one core. `--scale=paper`: the
config's 1,800 steps and three seeds.

2026-11-30, one core (AMD EPYC) beside much other work, 600 steps, one seed, 18 minutes of the clock
for the Conformer, 12 for each of the others: CER 0.194, transformer 0.235, LSTMs 0.236 (WER 0.585,
0.686, 0.650); without the convolution 0.217 (0.640), without the half steps 0.214 (0.628).
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, chain, seeds

CONFIG = "configs/asr_espeak.py"


def get_experiment(scale: str) -> Experiment:
    """Rows conformer, transformer, bilstm, and the Conformer without one of its parts."""
    nets = [
        Variation(net, {"config": f"{CONFIG}:{net}"})
        for net in ("conformer", "transformer", "bilstm")
    ]
    parts = [
        Variation("no_convolution", {"model.convolution_width": 0}),
        Variation("no_half_steps", {"model.block": "serial"}),
    ]
    steps = 600 if scale == "cpu" else 1800
    return Experiment(
        config=f"{CONFIG}:conformer",
        variations=seeds(chain(nets, parts), 1 if scale == "cpu" else 3),
        metric="cer",
        columns=("wer", "ctc"),
        base="conformer",
        changes={"steps": steps, "eval_every": 100_000, "keep": 1, "tensorboard": False},
    )
