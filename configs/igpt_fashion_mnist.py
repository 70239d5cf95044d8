"""A language model of the pixels of Fashion-MNIST (iGPT, Chen 2020), from scratch on a CPU.

python -m transformer_lab train --config=configs/igpt_fashion_mnist.py --workdir=runs/igpt

14 x 14 pixels of 16 grey levels. The run's completions.png shows, row by row, the upper half of a
test image, what the model makes of it, and the image; `transformer_lab evaluate` draws it anew,
with any --config.decode.temperature. The frequencies of levels at each pixel need 2.638 bits a
pixel of the test images.

2026-11-28, one core (AMD EPYC, AVX-512), shared at times: 1.171 bits a pixel of the test images
(validation 1.159) after 2,000 steps in 21 minutes.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/igpt_fashion_mnist.py:", arg, ("",))
    config = default_config(model="decoder", task="image_modeling")
    config.steps = 2000
    config.eval_every = 1000
    config.save_every = 250
    config.batch.update(rows=16, length=197)
    config.data.validation_share = 0.02
    config.model.update(
        layers=4,
        width=128,
        heads=4,
        head_dim=32,
        feed_forward_width=256,
        activation="geglu_tanh",
        norm="rms_norm",
        attention_bias=False,
        feed_forward_bias=False,
        dropout=0.0,
        max_length=197,
    )
    config.optimizer.update(
        name="muon",
        learning_rate=1e-2,
        warmup_steps=100,
        schedule="linear",
        weight_decay=0.1,
        clip_norm=1.0,
    )
    config.decode.update(temperature=1.0)
    return config
