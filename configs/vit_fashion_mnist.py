"""A small Vision Transformer on Fashion-MNIST, from scratch on a CPU.

python -m transformer_lab.train --config=configs/vit_fashion_mnist.py --workdir=runs/vit

`--config.data.share=0.01` trains on a hundredth of each class, on as many steps.
"""

from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    config = default_config(model="vision", task="image_classification")
    config.steps = 5000
    config.eval_every = 1000
    config.save_every = 500
    config.data.source = "fashion_mnist"
    config.batch.rows = 128
    config.augment.update(crop_padding=2, flip=0.5)
    config.task.label_smoothing = 0.1
    config.model.update(
        patch_size=(4, 4),
        layers=5,
        width=96,
        heads=3,
        head_dim=32,
        feed_forward_width=192,
        pooling="mean",
        activation="gelu_tanh",
        attention_dropout=0.0,
    )
    config.optimizer.update(
        name="muon",
        learning_rate=1e-2,
        warmup_steps=100,
        schedule="linear",
        weight_decay=0.1,
        clip_norm=1.0,
    )
    return config
