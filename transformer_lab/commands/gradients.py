"""Draws how gradients vanish or explode through time.

    transformer_lab gradients --png=gradients.png

It shows how much of the last output's gradient reaches each input, relative to the last input,
before any training: for Elman nets of three gains, LSTMs of three forget biases, and causal
attention.
"""

from absl import flags

from transformer_lab.layers import gradient_flow
from transformer_lab.terminal import print_table
from transformer_lab.training.writers import log


def define() -> None:
    flags.DEFINE_integer("length", 100, "Time steps.", lower_bound=2)
    flags.DEFINE_string("png", "", "The .png file to write.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    found = gradient_flow.curves(args.length)
    back = sorted({1, *(n for n in (10, 30, 100, 300) if n < args.length), args.length - 1})
    rows = [[name, *(f"{norms[-1 - n]:.2g}" for n in back)] for name, norms in found.items()]
    print_table(["net", *(f"{n} steps back" for n in back)], rows)
    if args.png:
        draw(found, args.png)
        log(f"drew them over time: {args.png}")


def draw(found: dict, path: str) -> None:
    """Draws the gradient norms over the steps back in time, on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure((6, 4), layout="constrained")
    ax = figure.add_subplot(xlabel="steps back", ylabel="gradient norm", yscale="log")
    for name, norms in found.items():
        ax.plot(norms[::-1], label=name)
    ax.legend(fontsize=8)
    figure.savefig(path, dpi=150)
