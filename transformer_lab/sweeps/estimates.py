"""What the runs of a sweep will take, by arithmetic: a list of large runs is then a plan."""

import dataclasses

from transformer_lab.layers.costs import idle_parameters
from transformer_lab.models import Vocabulary, costs, said
from transformer_lab.sweeps.experiment import Run

PEAK, UTILISATION, MEMORY = 312e12, 0.4, 80e9  # an A100: FLOP/s in bfloat16, the share, bytes
STATE_SHARE = 0.5  # of a device's memory that parameters, gradients and Adam's moments may take


def estimate(run: Run) -> str:
    """A line on a run: parameters, tokens, the devices that its state needs, and device-days.

    The devices are A100s of 80 GB, of whose memory weights, gradients and moments take at most a
    half; activations take the rest. Empty for a run whose family or data states too little.
    """
    if run.resolved is None:
        return ""
    model, sections = run.resolved.model, run.resolved.sections
    if isinstance(model, Vocabulary) and model.vocab_size is None:
        model = dataclasses.replace(model, vocab_size=sections["tokenizer"].vocab_size)
    groups = costs.parameter_groups(run.resolved.model_kind, model)
    flops, batch, count = (
        costs.flops_a_token(model, groups),
        sections["batch"],
        sum(groups.values()),
    )
    size = getattr(batch, "rows", 0) * getattr(batch, "length", 0)
    if not size:  # tokens of all stacks, where the FLOPs are those of a token in each
        size = getattr(batch, "tokens_per_batch", 0) / max(len(said(model, "STACKS", {})), 1)
    state = 4 * 4 * count  # float32: weights, gradients and two moments of Adam
    devices = 1
    while state > STATE_SHARE * MEMORY * devices:
        devices *= 2
    line = f"{count:,} parameters, {state / 1e9:,.1f} GB of weights, gradients and moments"
    if not (flops and size) or run.resolved.run.epochs:
        return line
    tokens = float(size) * run.resolved.run.steps
    days, _ = costs.device_days(flops, tokens, 1, PEAK, UTILISATION)
    active = count - idle_parameters(model)
    line += f" ({active:,} work for a token)" if active != count else ""
    least = f"at least {devices} of them" if devices > 1 else "one is enough"
    return f"{line}, {tokens:.2g} tokens: {days:,.3g} device-days of A100s at 40 %, {least}"
