"""A Mamba on the Brown corpus, from scratch on a CPU: the data and the time of `gpt_brown`.

python -m transformer_lab train --config=configs/mamba_brown.py --workdir=runs/mamba

Six blocks of a selective state space and nothing else have the parameters of its four of attention
and feed-forward, 2.28 M to 2.24 M.

2026-11-29, one core (AMD EPYC) shared with other work: a step took 2.3 of `gpt_brown`'s, one after
the other in one process (3.2 and 1.4 s with two other programs on the core), so that 1,100 steps
take the time of its 2,600: 1.794 bits per byte on the 25 held-out documents (validation 1.827),
2.6 % above the 1.749 of attention.
"""

from pathlib import Path

from transformer_lab.errors import known
from transformer_lab.sweeps.experiment import load_module


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/mamba_brown.py:", arg, ("",))
    config = load_module(str(Path(__file__).with_name("gpt_brown.py"))).get_config()
    config.update(steps=1100, eval_every=550, save_every=100)
    config.model.update(layers=6, layer_kinds=("mamba/none",), positions="none")
    config.model.mixer.update(inner_width=384, state=16, step_rank=12)
    config.optimizer.warmup_steps = 60
    return config
