"""Connectionist temporal classification (Graves 2006): the sum over all alignments of a text.

An alignment gives each state a token or the blank; removing repeats, then blanks, leaves the text.
So "aab" over four states may be a-ab but not aab-, where "-" is the blank: equal neighbours need a
blank between them."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int


def ctc_nats(
    logits: Float[Array, "b s v"],
    real: Bool[Array, "b s"],
    target: Int[Array, "b t"],
    target_mask: Bool[Array, "b t"],
    blank: int,
) -> Float[Array, "b"]:
    """-log of the probability of each text, summed over its alignments with the real states.

    A text needs as many states as `states_needed` says: the nats of one that has fewer mean
    nothing, and are about 1e5. A row without real states has 0.
    """
    pads = 1.0 - real.astype(jnp.float32), 1.0 - target_mask.astype(jnp.float32)
    inside = jnp.where(target_mask, target, blank)
    return optax.ctc_loss(logits.astype(jnp.float32), pads[0], inside, pads[1], blank_id=blank)


def states_needed(ids: Sequence[int] | Int[np.ndarray, "t"]) -> int:
    """The fewest states that can spell a text: its tokens, and a blank between equal neighbours."""
    ids = np.asarray(ids)
    return len(ids) + int((ids[1:] == ids[:-1]).sum())
