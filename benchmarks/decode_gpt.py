"""Generation speed of a GPT: prefill, then single tokens, beside the floor and beside PyTorch.

    python -m benchmarks.decode_gpt

The floor is the model's own matrix-vector products and nothing else. PyTorch is Hugging Face's
`generate`, greedy, with its cache, of the same sizes, where both libraries are installed. All of
them take turns.
"""

import argparse
import statistics

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import interleave, paired, report
from transformer_lab.decoding import DecodeConfig, Generator
from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.training.startup import keep_memory

CONFIG = DecoderConfig(  # 12.3 M parameters
    layers=6, width=384, heads=6, head_dim=64, feed_forward_width=1536, vocab_size=4000,
    max_length=256, dropout=0.0,
)  # fmt: skip
PROMPT, NEW = 32, 128


def generation(params, rows: int, new: int):
    """A turn of `new` greedy tokens after the prompts; the end token may not come."""
    generator = Generator(
        Decoder(CONFIG),
        DecodeConfig(max_new_tokens=new, banned_tokens=(1,), batch_size=rows),
        eos_id=1,
    )
    prompts = np.random.default_rng(0).integers(4, CONFIG.vocab_size, (rows, PROMPT)).tolist()
    # What `Generator.__call__` does, in the fewest calls: all tokens in chunks of its own size.
    return lambda: [None for _ in generator.stream(params, prompts, chunk=32)]


def products(params, rows: int, steps: int):
    """A turn of all matrix products of `steps` tokens: each waits for the one before it."""
    kernels = [x for x in jax.tree.leaves(params["decoder"]) if x.ndim == 2]
    head = params["embedding"]["embedding"]

    @jax.jit
    def run(kernels, head, x):
        def body(_, x):
            for kernel in kernels:
                y = x[:, : kernel.shape[0]] @ kernel
                x = jnp.pad(y, ((0, 0), (0, x.shape[1] - y.shape[1])))
            y = x[:, : head.shape[1]] @ head.T
            return x + y.sum() * 1e-30

        return jax.lax.fori_loop(0, steps, body, x)

    x = jnp.ones((rows, max(k.shape[1] for k in kernels))) * 1e-3
    return lambda: jax.block_until_ready(run(kernels, head, x))


def torch_generation(rows: int, new: int):
    """The same of Hugging Face's, or None."""
    try:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        return None
    config = GPT2Config(
        n_layer=CONFIG.layers, n_embd=CONFIG.width, n_head=CONFIG.heads, n_positions=256,
        n_inner=CONFIG.feed_forward_width, vocab_size=CONFIG.vocab_size, bos_token_id=0,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GPT2LMHeadModel(config).eval().to(device)
    prompts = torch.randint(4, CONFIG.vocab_size, (rows, PROMPT), device=device)
    settings = {"max_new_tokens": new, "do_sample": False, "use_cache": True}

    @torch.inference_mode()
    def run():
        out = model.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)
        assert out.shape[1] == PROMPT + new
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each way")
    parser.add_argument("--append", help="a file that gets the results as table rows")
    args = parser.parse_args()
    ids = jnp.zeros((1, 4), jnp.int32)
    params = jax.jit(Decoder(CONFIG).init)(jax.random.key(0), ids)["params"]
    for rows in (1, 16):
        turns = {
            "ours": generation(params, rows, NEW),
            "prefill": generation(params, rows, 1),
            "floor": products(params, rows, NEW),
        }
        if other := torch_generation(rows, NEW):
            turns |= {"torch": other, "torch prefill": torch_generation(rows, 1)}
        seconds = interleave(turns, args.rounds)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        alone = [a - b for a, b in zip(seconds["ours"], seconds["prefill"], strict=True)]
        token = statistics.median(alone) / (NEW - 1)
        result = (
            f"prefill of {PROMPT} tokens {1e3 * medians['prefill']:.1f} ms; then "
            f"{rows / token:,.0f} tokens/s, {1e3 * token:.2f} ms a token, "
            f"{token / medians['floor'] * NEW:.2f} times the products' "
            f"{1e3 * medians['floor'] / NEW:.2f} ms"
        )
        if other:
            theirs = [
                a - b for a, b in zip(seconds["torch"], seconds["torch prefill"], strict=True)
            ]
            rate = rows * (NEW - 1) / statistics.median(theirs)
            result += f"; Hugging Face {rate:,.0f} tokens/s: {paired(theirs, alone):.1f} times that"
        report(f"generate 12 M, batch {rows}", result, args.append)


if __name__ == "__main__":
    keep_memory()
    main()
