"""The block that every stack is made of: attention or another mixer, and feed-forward."""

from dataclasses import replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer_lab.errors import LabError
from transformer_lab.layers.adapter import Adapter
from transformer_lab.layers.attention import Attention, KeyValue
from transformer_lab.layers.basic import Dense, FeedForward
from transformer_lab.layers.basic import norm as norm_of
from transformer_lab.layers.block_config import mixer_of
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.convolution import Convolution
from transformer_lab.layers.experts import Experts
from transformer_lab.layers.mixing import Flow, ShiftedFeedForward
from transformer_lab.layers.positions import Places
from transformer_lab.ops.dropout import drop_path, dropout
from transformer_lab.ops.layout import constrain
from transformer_lab.ops.visibility import ALL, Visible

Bias = Float[Array, "#b #n _ s"]  # for each query, or where segments are read for those of one
DropoutKey = Key[Array, ""]
Cache = Any  # a layer's keys and values, or a mixer's state; or a dictionary of this and the
# feed-forward's state
FORWARDS = {"dense": FeedForward, "experts": Experts, "shifted": ShiftedFeedForward}
STREAM = ("rows", "length", "width")


class Block(nn.Module):
    """Self-attention, cross-attention if asked for, feed-forward; each with residual and norm.

    post: x = norm(x + f(x)) (Vaswani 2017, 3.1); deep: x = norm(alpha x + f(x)) (Wang 2022);
    pre: x = x + f(norm(x)) (Xiong 2020); parallel: x = x + attention(norm(x)) +
    feed_forward(norm(x)) (Chowdhery 2022, section 2), with one norm or two. With `adapter_width`
    a bottleneck follows each f, before the residual is added (Houlsby 2019, figure 2).

    conformer: x + feed_forward(norm(x)) / 2, attention, a convolution if `convolution_width` is
    set, x + feed_forward(norm(x)) / 2, then a norm (Gulati 2020, eq. 1).

    `conditioned`: attention and feed-forward f become gate * f(norm(x) (1 + scale) + shift), whose
    gate, scale and shift are linear in a vector for each example, such as of a time and a class.
    All are 0 at first, so that the block begins as the identity (adaLN-Zero, Peebles 2023, 3.2).
    """

    config: StackConfig
    causal: bool = False
    cross: bool = False
    conditioned: bool = False

    def setup(self):
        cfg = self.config
        norm = partial(norm_of, weights=not self.conditioned)
        if self.conditioned:
            zeros = nn.initializers.zeros
            self.modulation = Dense(6 * cfg.width, True, cfg.compute_dtype, zeros)
        self.mixes = cfg.mixer.kind != "attention"
        if self.mixes:
            self.mixer, self.mixer_norm = mixer_of(cfg.mixer.kind)(cfg), norm(cfg)
        else:
            self.attention, self.attention_norm = Attention(cfg), norm(cfg)
        if self.cross:
            self.cross_attention = Attention(replace(cfg, positions="none", window=0))
            self.cross_attention_norm = norm(cfg)
        if cfg.feed_forward != "none":
            self.feed_forward = FORWARDS[cfg.feed_forward](cfg)
            if cfg.block != "parallel":
                self.feed_forward_norm = norm(cfg)
        if cfg.block == "conformer":
            self.first_feed_forward = FORWARDS[cfg.feed_forward](cfg)
            self.first_feed_forward_norm, self.last_norm = norm(cfg), norm(cfg)
        if cfg.convolution_width:
            if self.causal:
                raise LabError(
                    "model.convolution_width: the convolution sees later positions, which a "
                    "decoder must not: set it to 0"
                )
            self.convolution, self.convolution_norm = Convolution(cfg), norm(cfg)
        if cfg.adapter_width:
            self.attention_adapter, self.feed_forward_adapter = Adapter(cfg), Adapter(cfg)
            if self.cross:
                self.cross_attention_adapter = Adapter(cfg)
        if cfg.layer_scale:
            init = nn.initializers.constant(cfg.layer_scale), (cfg.width,)
            self.attention_scale = self.param("attention_scale", *init)
            if cfg.feed_forward != "none":
                self.feed_forward_scale = self.param("feed_forward_scale", *init)
            if self.cross:
                self.cross_attention_scale = self.param("cross_attention_scale", *init)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        seen: Visible = ALL,
        memory: Float[Array, "b m d"] | None = None,
        memory_seen: Visible = ALL,
        dropout_key: DropoutKey | None = None,
        places: Places | None = None,
        bias: Bias | None = None,
        added: Float[Array, "#b t d"] | None = None,
        drop_rate: float | Float[Array, ""] = 0.0,
        condition: Float[Array, "b d"] | None = None,
    ) -> Float[Array, "b t d"]:
        """All positions at once; `added` are position vectors, `drop_rate` is that of drop path."""
        keys = (None,) * 6 if dropout_key is None else jax.random.split(dropout_key, 6)
        flow = Flow.of(seen, places and places.query)
        if self.mixes:
            mixed = lambda h: self.mixer(h, flow)[0]  # noqa: E731
        else:
            seen = replace(seen, window=self.config.window)
            mixed = lambda h: self.attention(h, None, seen, keys[0], places, bias)  # noqa: E731
        cross = None
        if self.cross:
            key_value = self.cross_attention.keys_and_values(memory)
            cross = lambda h: self.cross_attention(h, key_value, memory_seen, keys[1])  # noqa: E731
        forward = lambda h: self._forward(h, keys[5], flow, None)[0]  # noqa: E731
        if self.conditioned:
            parts = jnp.split(self.modulation(jax.nn.silu(condition))[:, None], 6, axis=-1)
            mixed, forward = _modulated(mixed, *parts[:3]), _modulated(forward, *parts[3:])
        more = self._more(flow, dropout_key)
        x = constrain(x if added is None else x + added, *STREAM)
        x = self._compose(x, mixed, cross, forward, keys[2:5], drop_rate, more)
        return constrain(x, *STREAM)

    def step(
        self,
        x: Float[Array, "b t d"],
        cache: Cache | None,
        index: Int[Array, ""],
        seen: Visible,
        places: Places | None,
        bias: Bias | None = None,
        added: Float[Array, "#b t d"] | None = None,
        cross_cache: KeyValue | None = None,
        memory_seen: Visible = ALL,
        flow: Flow | None = None,
    ) -> tuple[Float[Array, "b t d"], Cache]:
        """Runs t new positions, the first at `index`, over a cache (None: they are the first).

        The cache is the keys and values of attention, or a mixer's state; where the feed-forward
        has a state as well, it is a dictionary of both.
        """
        new: dict[str, Any] = {}
        both = self.config.feed_forward == "shifted"
        old = cache if both and cache is not None else {"mixer": cache, "feed_forward": None}

        def mixed(h):
            if self.mixes:
                out, new["mixer"] = self.mixer(h, flow, old["mixer"])
            else:
                out, new["mixer"] = self.attention.step(h, old["mixer"], index, seen, places, bias)
            return out

        def forward(h):
            out, new["feed_forward"] = self._forward(h, None, flow, old["feed_forward"])
            return out

        cross = None
        if self.cross:
            cross = lambda h: self.cross_attention(h, cross_cache, memory_seen)  # noqa: E731
        x = x if added is None else x + added
        x = self._compose(x, mixed, cross, forward, (None,) * 3, more=self._more(flow, None))
        return x, new if both else new["mixer"]

    def _forward(self, x, dropout_key, flow, state, layer=None):
        """The feed-forward's output, and its new state if it keeps one, else None."""
        layer = layer or self.feed_forward
        if self.config.feed_forward == "shifted":
            return layer(x, flow, state)
        if self.config.feed_forward == "experts":
            return layer(x, dropout_key, flow.real), None
        return layer(x, dropout_key), None

    def _more(self, flow, dropout_key):
        """The Conformer's sub-layers, each with its dropout key, or None: the feed-forward before
        attention, and the convolution after it."""
        cfg, keys, first, convolved = self.config, (None,) * 3, None, None
        if dropout_key is not None and (cfg.block == "conformer" or cfg.convolution_width):
            keys = jax.random.split(jax.random.fold_in(dropout_key, 6), 3)
        if cfg.block == "conformer":
            layer = self.first_feed_forward
            first = lambda h: self._forward(h, keys[2], flow, None, layer)[0], keys[0]
        if cfg.convolution_width:
            training = dropout_key is not None
            convolved = lambda h: self.convolution(h, flow.real, training), keys[1]
        return first, convolved

    def _compose(self, x, mixed, cross_attention, forward, keys, drop_rate=0.0, more=(None, None)):
        cfg, (first, convolved) = self.config, more
        share = 0.5 if cfg.block == "conformer" else 1.0  # of a feed-forward's output
        if cfg.adapter_width:
            mixed = _then(mixed, self.attention_adapter)
            forward = _then(forward, self.feed_forward_adapter)
            if cross_attention is not None:
                cross_attention = _then(cross_attention, self.cross_attention_adapter)

        if cfg.layer_scale:
            mixed = _scaled(mixed, self.attention_scale)
            if cfg.feed_forward != "none":
                forward = _scaled(forward, self.feed_forward_scale)
            if cross_attention is not None:
                cross_attention = _scaled(cross_attention, self.cross_attention_scale)

        def dropped(sublayer, key):
            whole = _then(sublayer, lambda h: dropout(h, cfg.dropout, key))
            return _then(whole, lambda h: drop_path(h, drop_rate, key)) if cfg.drop_path else whole

        # Dropout comes before the residual is added (Vaswani 2017, section 5.4), then drop path.
        mixed, forward = dropped(mixed, keys[0]), dropped(forward, keys[2])
        mixed_norm = self.mixer_norm if self.mixes else self.attention_norm
        if first is not None:
            x = self._residual(x, dropped(*first), self.first_feed_forward_norm, share)
        if cfg.block.startswith("parallel"):
            h = mixed_norm(x)
            g = h if cfg.block == "parallel" else self.feed_forward_norm(x)
            x = (x if cfg.residual else 0.0) + mixed(h) + forward(g)
        else:
            x = self._residual(x, mixed, mixed_norm)
        if convolved is not None:
            x = self._residual(x, dropped(*convolved), self.convolution_norm)
        if cross_attention is not None:
            cross_attention = dropped(cross_attention, keys[1])
            x = self._residual(x, cross_attention, self.cross_attention_norm)
        if cfg.block.startswith("parallel") or cfg.feed_forward == "none":
            return x
        x = self._residual(x, forward, self.feed_forward_norm, share)
        return self.last_norm(x) if cfg.block == "conformer" else x

    def _residual(self, x, sublayer, norm_layer, share=1.0):
        cfg = self.config
        kept = x if cfg.residual else 0.0
        if cfg.norm_place == "pre":
            out = sublayer(norm_layer(x))
            return kept + (out if share == 1.0 else share * out)
        # DeepNorm: norm(alpha x + f(x)), so that deep stacks of post-norms train (Wang 2022).
        scaled = kept * cfg.residual_scale if cfg.norm_place == "deep" else kept
        return norm_layer(scaled + sublayer(x))


def _scaled(sublayer, weights):
    return _then(sublayer, lambda h: h * weights.astype(h.dtype))


def _modulated(sublayer, shift, scale, gate):
    return lambda h: gate * sublayer(h * (1 + scale) + shift)


def _then(sublayer, adapter):
    return lambda h: adapter(sublayer(h))
