"""The bottleneck adapter, a small trainable net inside of each block of a frozen model."""

import flax.linen as nn
from jaxtyping import Array, Float

from transformer_lab.layers.basic import Dense, dense
from transformer_lab.layers.config import StackConfig
from transformer_lab.ops.activations import ACTIVATIONS, GATED


class Adapter(nn.Module):
    """x + up(act(down(x))) (Houlsby 2019, section 2.1); it starts near the identity."""

    config: StackConfig

    def setup(self):
        cfg = self.config
        self.down = dense(cfg, cfg.adapter_width, True)
        small = nn.initializers.normal(1e-3)
        self.up = Dense(cfg.width, dtype=cfg.compute_dtype, kernel_init=small)

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        name = self.config.activation
        return x + self.up(ACTIVATIONS[GATED.get(name, name)](self.down(x)))
