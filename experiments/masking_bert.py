"""What should stand in a hidden token's place, and is the next-sentence loss of use?

python -m transformer_lab sweep --experiment=experiments/masking_bert.py --workdir=runs/masking

Devlin 2019, table 8: 80 % [MASK], 10 % the token itself, 10 % a random one, against its neighbours;
table 5: without next sentences (MNLI 83.9, with them 84.4). The paper scores by fine-tuning; here
the scores are on the same held-out inputs for all rows (`no_nsp` has its own), in which every
hidden token is a [MASK]: the two rows that never see one in training lose by construction, and have
no verdict.

Scale cpu: the model of configs/bert_brown.py for 800 steps in place of 5,000; three seeds of the
rows in `DECIDING`, 13 runs, about 7 minutes of one core each. experiments/masking_tags.py asks what
the encoders are worth, which is the paper's question.

2026-11-30, three seeds, loss of hidden tokens: 5.035 of 80/10/10, 5.088 of 100/0/0, 5.398 of
0/0/100; the next sentences stay near a coin's 0.693. 2026-11-28, one seed: 5.04 of 80/20/0, 5.20 of
80/0/20, 5.30 of 0/20/80; without next sentences 5.04.
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds

# Shares of [MASK], of the token itself and of a random token
SHARES = ((80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100))
NAMES = {shares: "mask{}_same{}_random{}".format(*shares) for shares in SHARES}
DECIDING = {NAMES[shares] for shares in ((80, 10, 10), (100, 0, 0), (0, 0, 100))}  # three seeds


def get_experiment(scale: str) -> Experiment:
    """At scale paper BERT base on 131,072 tokens a step of Wikipedia, three seeds."""
    rows = [
        Variation(
            name, {"masking.mask_share": shares[0] / 100, "masking.random_share": shares[2] / 100}
        )
        for shares, name in NAMES.items()
    ]
    rows.append(Variation("no_nsp", {"task.next_sentence": False}))
    large = {
        "steps": 1_000_000, "eval_every": 10_000, "save_every": 10_000, "model.layers": 12,
        "model.width": 768, "model.heads": 12, "model.head_dim": 64, "batch.rows": 256,
        "model.feed_forward_width": 3072, "model.max_length": 512, "batch.length": 512,
        "model.dropout": 0.1, "model.attention_dropout": 0.1, "tokenizer.vocab_size": 30_000,
        "optimizer.name": "adam", "optimizer.learning_rate": 1e-4, "optimizer.warmup_steps": 10_000,
        "optimizer.b2": 0.999, "optimizer.epsilon": 1e-6,
        "data.source": "tfds", "data.tfds_name": "wikipedia/20230601.en",
    }  # fmt: skip
    small = {"steps": 800, "eval_every": 200, "save_every": 400, "keep": 1, "task.samples": 0}
    return Experiment(
        config="configs/bert_brown.py" + (":original" if scale == "paper" else ""),
        variations=seeds(rows, 3, None if scale == "paper" else DECIDING),
        metric="mlm_loss",
        columns=("mlm_accuracy", "nsp_loss", "nsp_accuracy"),
        changes={"tensorboard": False, "task.score_masked": True}
        | (small if scale == "cpu" else large),
        paper=papers.DEVLIN_TABLE8,
        paper_rows={name: "/".join(map(str, shares)) for shares, name in NAMES.items()},
        base={name: NAMES[80, 10, 10] for shares, name in NAMES.items() if shares[0]},
    )
