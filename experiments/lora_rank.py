"""Which matrices should low-rank changes adapt, and at which rank?

python -m transformer_lab sweep --experiment=experiments/lora_rank.py \
    --workdir=runs/lora_rank --init_from=hf:DIR

Hu 2021, tables 5 and 6, of GPT-3 on MultiNLI and WikiSQL; here film reviews by the encoder of
--init_from (`experiments/adaptation.py` has its data). Rows MATRICES: as many parameters for all,
rank 8 of one matrix, 4 of two, 2 of four. Rows rank=R: of query and value. The change is scaled by
alpha / rank with alpha twice the rank, as there.

Not run yet: 33 runs of 65 steps, by the times of `adaptation` about 55 minutes of one core with
MiniLM-L6. `--scale=paper`: two epochs, as in the config file, on RoBERTa base of yours.
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment, load_module
from transformer_lab.sweeps.variations import Variation, chain, seeds

FILE = "configs/finetune_sentiment.py:lora"
MATRICES = {  # name -> the paper's label, the kernels and the rank
    "query": ("W_q", "query", 8), "key": ("W_k", "key", 8), "value": ("W_v", "value", 8),
    "out": ("W_o", "out", 8), "query_key": ("W_q, W_k", "query|key", 4),
    "query_value": ("W_q, W_v", "query|value", 4),
    "all_four": ("W_q, W_k, W_v, W_o", "query|key|value|out", 2),
}  # fmt: skip
RANKS = (1, 2, 8, 64)  # rank 4 of query and value is a row of the matrices


def get_experiment(scale: str) -> Experiment:
    """Three seeds of each row; the published figures beside the ranks are of table 5's data."""
    rows = [_row(name, *line[1:]) for name, line in MATRICES.items()]
    ranks = [_row(f"rank={rank}", "query|value", rank) for rank in RANKS]
    return Experiment(
        config=FILE,
        variations=seeds(chain(rows, ranks), 3),
        metric="accuracy",
        higher_is_better=True,
        changes=load_module("experiments/adaptation.py").CPU if scale == "cpu" else {},
        paper=papers.HU_TABLES,
        paper_rows={name: line[0] for name, line in MATRICES.items()}
        | {f"rank={rank}": f"r = {rank}" for rank in RANKS},
        base="query_value",
        needs_init_from=True,
    )


def _row(name: str, kernels: str, rank: int) -> Variation:
    targets = rf"attention/({kernels})/kernel$"
    changes = {"targets": targets, "rank": rank, "alpha": 2.0 * rank}
    return Variation(name, {f"adapt.{key}": value for key, value in changes.items()})
