"""The recurrence in its three ways, experts in their two, and a token's time by its context.

    python -m benchmarks.mixers --what=scan [--append=docs/benchmarks.md]

`scan`: values and gradients of `ops.scan.recurrence` with the shapes of Mamba, Mamba-2, gated
linear attention and RWKV-4 of width 256; a way whose states of all steps would take more than
256 MB is left out. `experts`: the same of one layer of 8 experts, two a token, by `ragged_dot` and
on places. `context`: a greedy token of four layers behind so many positions, of Mamba and of
attention; a step reads the cache's whole length whatever it holds, so it is empty. `torch`: a Mamba
layer's step beside that of transformers in PyTorch, without its CUDA kernels, where both are
installed. The ways of one row take turns in one process.
"""

import statistics
from functools import partial

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks.common import interleave, paired, report
from transformer_lab.layers.block_config import MixerConfig
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.state_spaces import Mamba
from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.ops import experts
from transformer_lab.ops.scan import WAYS, recurrence
from transformer_lab.training.startup import keep_memory

flags.DEFINE_enum("what", "scan", ["scan", "experts", "context", "torch"], "See above.")
flags.DEFINE_integer("rounds", 5, "Of turns.")
flags.DEFINE_list("only", [], "Names in the rows that are measured; empty: all.")
flags.DEFINE_string("append", None, "A Markdown file that gets the results as rows.")

# Heads, those of keys, entries of a key, of a value and of the decays, and a chunk
SHAPES = {
    "mamba": (512, 1, 16, 1, 1, 16),  # with poles, one for each entry
    "mamba2": (8, 1, 64, 64, 1, 64),
    "gated": (4, 4, 64, 64, 64, 16),
    "rwkv": (256, 256, 1, 2, 1, 64),
}
LENGTHS = (128, 512, 2048)
CONTEXTS = (1024, 4096, 16_384, 65_536)
MOST = 2**26  # numbers of all states: a quarter of a gigabyte, and several copies of it
NEW = 16  # tokens of a turn of `context`


def turn_of(function, *arguments):
    """A turn of one call, compiled."""
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*arguments))


def scan_turns(shape: str, length: int, rows: int = 2):
    """The ways for one shape: gradients of the sum of squares of the outputs by all inputs."""
    h, shared, k, p, d, chunk = SHAPES[shape]
    keys = jax.random.split(jax.random.key(0), 5)
    query, key = (jax.random.normal(x, (rows, length, shared, k)) for x in keys[:2])
    value = jax.random.normal(keys[2], (rows, length, h, p))
    decay = -jax.random.uniform(keys[3], (rows, length, h, d))

    poles = jax.random.uniform(keys[4], (h, k)) if shape == "mamba" else None

    def loss(way, *inputs):
        out, _ = recurrence(*inputs, poles=poles, way=way, chunk=chunk)
        return jnp.square(out).sum()

    fitting = [w for w in WAYS if w != "associative" or rows * length * h * k * p < MOST]
    step = {way: jax.value_and_grad(partial(loss, way), argnums=(0, 1, 2, 3)) for way in fitting}
    return {way: turn_of(step[way], query, key, value, decay) for way in fitting}


def expert_turns(rows: int = 4, length: int = 256, d: int = 256, f: int = 512, e: int = 8):
    """By name: sorted, places of several capacities, and a dense layer of the same active size."""
    keys = jax.random.split(jax.random.key(0), 5)
    x = jax.random.normal(keys[0], (rows, length, d))
    router = jax.random.normal(keys[1], (d, e)) * d**-0.5
    kernels = [jax.random.normal(keys[2], (e, d, f)) * d**-0.5, None]
    kernels += [jax.random.normal(keys[3], (e, f, d)) * f**-0.5]
    act = lambda up, gate: jax.nn.relu(up)  # noqa: E731

    def loss(factor, x, up, down):
        capacity = None if factor is None else experts.capacity_of(length, e, 2, factor)
        routes = experts.choose_experts(jax.nn.softmax(x @ router), 2, capacity, renormalize=True)
        if factor is None:
            out = experts.sorted_by_expert(x, routes, up, None, down, act)
        else:
            placed = experts.places(routes, e, capacity)
            out = experts.by_places(x, placed, up, None, down, act)
        return jnp.square(out).sum()

    def dense(x, up, down):
        up, down = jnp.concatenate(up[:2], axis=1), jnp.concatenate(down[:2])
        return jnp.square(jax.nn.relu(x @ up) @ down).sum()

    losses = {f"places x {c:g}": partial(loss, c) for c in (1.0, 1.25, 2.0, 4.0)}
    losses |= {"sorted": partial(loss, None), "dense of two experts": dense}
    arguments = x, kernels[0], kernels[2]
    return {
        name: turn_of(jax.value_and_grad(one, argnums=(0, 1, 2)), *arguments)
        for name, one in losses.items()
    }


def context_turns(context: int):
    """NEW greedy tokens behind `context` positions, of each kind of mixer."""
    turns = {}
    for kind in ("mamba", "attention"):
        config = DecoderConfig(
            layers=4, width=256, heads=4, head_dim=64, feed_forward_width=1024, vocab_size=4000,
            max_length=context + NEW, positions="none", dropout=0.0,
            feed_forward="none" if kind == "mamba" else "dense",
            mixer=MixerConfig(kind, inner_width=512, step_rank=16),
        )  # fmt: skip
        model = Decoder(config)
        variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
        cache = model.apply(variables, 1, context + NEW, method="init_cache")
        cache["index"] = jnp.full((), context, jnp.int32)

        def run(variables, cache, model=model):
            def body(state, _):
                token, cache = state
                logits, cache = model.apply(variables, token, cache, method="step")
                return (logits[:, -1:].argmax(axis=-1).astype(jnp.int32), cache), None

            return jax.lax.scan(body, (jnp.ones((1, 1), jnp.int32), cache), None, NEW)[0][0]

        turns[kind] = turn_of(run, variables, cache)
    return turns


def layer_turns(length: int, rows: int = 2, width: int = 256):
    """A Mamba layer's values and gradients in each way, and PyTorch's where it is installed."""
    x = jax.random.normal(jax.random.key(0), (rows, length, width))
    turns = {}
    for way in WAYS:
        mixer = MixerConfig(
            "mamba", inner_width=2 * width, step_rank=width // 16, way=way, chunk=16
        )
        layer = Mamba(StackConfig(width=width, mixer=mixer))
        params = jax.jit(layer.init)(jax.random.key(1), x)
        loss = lambda p, x, layer=layer: jnp.square(layer.apply(p, x)[0]).sum()  # noqa: E731
        turns[way] = turn_of(jax.value_and_grad(loss, argnums=(0, 1)), params, x)
    try:
        import torch
        from transformers import MambaConfig
        from transformers.models.mamba.modeling_mamba import MambaMixer
    except ImportError:
        return turns
    config = MambaConfig(hidden_size=width, state_size=16, num_hidden_layers=1)
    theirs, y = MambaMixer(config, 0), torch.randn(rows, length, width, requires_grad=True)

    def turn():
        theirs.zero_grad(set_to_none=True)
        y.grad = None
        theirs(y).square().sum().backward()

    return turns | {"PyTorch": turn}


def main(_) -> None:
    args = flags.FLAGS
    rows = {
        "scan": [(f"{s}, {n} steps", partial(scan_turns, s, n)) for s in SHAPES for n in LENGTHS],
        "experts": [("8 of 512 units, 4 x 256 tokens of 256", expert_turns)],
        "context": [(f"{n:,} positions", partial(context_turns, n)) for n in CONTEXTS],
        "torch": [(f"a Mamba layer, 2 x {n} x 256", partial(layer_turns, n)) for n in LENGTHS[:2]],
    }[args.what]
    each, unit = (NEW, "ms a token") if args.what == "context" else (1, "ms")
    for name, make in rows:
        if args.only and not any(part in name for part in args.only):
            continue
        seconds = interleave(make(), args.rounds)
        first = next(iter(seconds))
        parts = []
        for way, found in seconds.items():
            ratio = "" if way == first else f" ({paired(found, seconds[first]):.2f} times)"
            parts.append(f"{way} {1e3 * statistics.median(found) / each:.2f}{ratio}")
        report(f"{args.what}, {name}, {unit}", "; ".join(parts), args.append)


if __name__ == "__main__":
    keep_memory()
    app.run(main)
