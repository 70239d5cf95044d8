"""Decoding speed: greedy and beam search, with the cache and without, one sentence and 64 at once.

    python -m benchmarks.decode --size=default

The model is untrained and may not end a text, so that each sentence costs the same steps.
"""

import argparse
import statistics

import jax
import jax.numpy as jnp

from benchmarks.common import EOS, SIZES, Size, interleave, make_batch, model_config, paired, report
from transformer_lab.decoding import DecodeConfig, SequenceDecoder
from transformer_lab.models.encoder_decoder import EncoderDecoder
from transformer_lab.training.startup import keep_memory


class Uncached(EncoderDecoder):
    """The same model, whose `step` computes the decoder anew for all positions."""

    def init_cache(self, source, source_mask, length):
        return {
            "index": jnp.zeros((), jnp.int32),
            "layers": {"tokens": jnp.zeros((source.shape[0], length), jnp.int32)},
            "memory": {"states": self.encode(source, source_mask), "mask": source_mask},
        }

    def step(self, tokens, cache):
        index, memory = cache["index"], cache["memory"]
        written = jax.lax.dynamic_update_slice(cache["layers"]["tokens"], tokens, (0, index))
        states = self.decode(written, memory["states"], memory["mask"])
        last = jax.lax.dynamic_slice_in_dim(states, index, 1, axis=1)
        return self.logits(last), {**cache, "index": index + 1, "layers": {"tokens": written}}


def decoder_of(model: EncoderDecoder, size: Size, beams: int, rows: int) -> SequenceDecoder:
    """Always `size.target` steps: the end token is banned."""
    config = DecodeConfig(
        beam_size=beams, batch_size=rows, max_new_tokens=size.target, banned_tokens=(EOS,)
    )
    return SequenceDecoder(model, config, eos_id=EOS, pad_id=0, start_id=2, buckets=[size.source])


def compare(name: str, size: Size, rounds: int, append: str | None) -> None:
    """One result for each search and batch: both ways of it take turns."""
    config = model_config(size)
    models = {"cache": EncoderDecoder(config), "no cache": Uncached(config)}
    ids = jnp.zeros((1, 4), jnp.int32)
    params = jax.jit(models["cache"].init)(jax.random.key(0), ids, ids == 0, ids)
    pool = make_batch(size)["source"]
    for beams in (1, 4):
        for rows in (64, 1):
            sources = [pool[i % len(pool)].tolist() for i in range(rows)]
            turns = {
                kind: _turn(decoder_of(model, size, beams, rows), params, sources)
                for kind, model in models.items()
            }
            seconds = interleave(turns, rounds)
            medians = {kind: statistics.median(values) for kind, values in seconds.items()}
            gain = paired(seconds["no cache"], seconds["cache"])
            report(
                f"decode {name}, {'greedy' if beams == 1 else f'beam {beams}'}, batch {rows}",
                f"{rows / medians['cache']:,.1f} sentences/s ({size.target} tokens each), "
                f"{1e3 * medians['cache'] / size.target:.2f} ms a token; without the cache "
                f"{rows / medians['no cache']:,.1f}: {gain:.1f} times its speed",
                append,
            )


def _turn(decoder: SequenceDecoder, params, sources):
    return lambda: decoder(params, sources)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each way")
    parser.add_argument("--append", help="a file that gets the results as table rows")
    args = parser.parse_args()
    compare(args.size, SIZES[args.size], args.rounds, args.append)


if __name__ == "__main__":
    keep_memory()
    main()
