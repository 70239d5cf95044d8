"""A Mamba on the Brown corpus, from scratch on a CPU: the data and the time of `gpt_brown`.

python -m transformer_lab train --config=configs/mamba_brown.py --workdir=runs/mamba

Six blocks of a selective state space and nothing else have the parameters of its four of attention
and feed-forward, 2.28 M to 2.24 M.

2026-11-29, 2 cores (AMD EPYC) shared with other work: a step of 16 rows of 128 took 4.0 seconds of
a core, one of `gpt_brown` 0.68 in the same process in turns. So 440 steps take the time of its
2,600; they were begun and not trained to the end.
"""

from pathlib import Path

from transformer_lab.errors import known
from transformer_lab.sweeps.experiment import load_module


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/mamba_brown.py:", arg, ("",))
    config = load_module(str(Path(__file__).with_name("gpt_brown.py"))).get_config()
    config.update(steps=440, eval_every=220, save_every=50)
    config.model.update(layers=6, layer_kinds=("mamba/none",), positions="none")
    config.model.mixer.update(inner_width=384, state=16, step_rank=12)
    config.optimizer.warmup_steps = 40
    return config
