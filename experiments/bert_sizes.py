"""Does a larger encoder predict hidden tokens better, in as many steps?

python -m transformer_lab sweep --experiment=experiments/bert_sizes.py --workdir=runs/bert_sizes

Devlin 2019, table 6: six sizes of BERT with the same settings and steps; the larger the better, by
perplexity and after fine-tuning. Here a third of the paper's layers and a quarter of its width,
without the fine-tuning: the losses of hidden tokens, all of which are a [MASK].

Scale cpu: the model of configs/bert_brown.py for 800 steps, three seeds of the rows in `DECIDING`,
12 runs, planned for 75 minutes of one core and not run yet. At scale paper the paper's sizes, three
seeds of each.
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment, load_module
from transformer_lab.sweeps.variations import Variation, seeds

SIZES = ((3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16))
BASE, DECIDING = SIZES[3], (SIZES[0], SIZES[2], SIZES[3])  # three seeds


def get_experiment(scale: str) -> Experiment:
    """Rows are sizes."""
    shared = load_module("experiments/masking_bert.py").get_experiment(scale)
    rows = {size: _row(*size, *((3, 4, 2) if scale == "cpu" else (1, 1, 1))) for size in SIZES}
    decide = [rows[size].row for size in DECIDING] if scale == "cpu" else None
    return Experiment(
        config=shared.config,
        variations=seeds([*rows.values()], 3, decide),
        metric="mlm_loss",
        columns=("mlm_accuracy",),
        changes=shared.changes,  # which a row's own sizes replace
        paper=papers.DEVLIN_TABLE6,
        paper_rows={rows[x].row: "L = {}, H = {}, A = {}".format(*x) for x in SIZES},
        base=rows[BASE].row,
    )


def _row(layers: int, width: int, heads: int, deep: int, wide: int, split: int) -> Variation:
    """A size of the paper, of which layers, width and heads are divided by the last three."""
    layers, width, heads = layers // deep, width // wide, -(-heads // split)
    sizes = {
        "layers": layers, "width": width, "heads": heads, "head_dim": width // heads,
        "feed_forward_width": 4 * width,
    }  # fmt: skip
    changes = {f"model.{name}": value for name, value in sizes.items()}
    return Variation(f"layers={layers},width={width},heads={heads}", changes)
