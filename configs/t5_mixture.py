"""One small T5 for six tasks: translation, summaries, sentiment, questions, next sentences, spans.

    python -m transformer_lab.train --config=configs/t5_mixture.py --workdir=runs/t5
    python -m transformer_lab.translate --workdir=runs/t5 "summarize: Choose Tools - Macros. ..."

`:TASK` trains the same model on one task alone: translate, summarize, sentiment, question,
next_sentence or spans, in the share of the steps that the mixture has for it, so that it sees as
many of its examples. experiments/multitask.py is all of these side by side.

T5's block, but for the scores, which are scaled: unscaled ones are for Adafactor, whose steps are
in proportion to a parameter's size. By Adam 250 steps of translation reach 4.39 nats without the
scale (rate 1e-3) and 3.63 with it (3e-3).
"""

from transformer_lab.errors import LabError, nearest
from transformer_lab.training.config import default_config

STEPS = 2000
# Of the examples that the mixture draws, as its report says: sizes, of 10,000 at most.
SHARES = {"translate": 0.213, "summarize": 0.077, "sentiment": 0.213, "question": 0.08,
          "next_sentence": 0.213, "spans": 0.205}  # fmt: skip


def get_config(arg: str = ""):
    """`arg` is empty or a task's name."""
    if arg and arg not in SHARES:
        raise LabError(f'configs/t5_mixture.py:"{arg}" is unknown{nearest(arg, SHARES)}')
    config = default_config(model="encoder_decoder", task="text_to_text")
    config.steps = round(STEPS * SHARES[arg]) if arg else STEPS
    config.eval_every = 1000
    config.save_every = 200
    config.average = 5
    if arg:
        config.data.tasks = (arg,)
    config.data.limit = 10_000
    config.data.temperature = 1.0
    config.tokenizer.update(kind="unigram", vocab_size=8000, extra_ids=32)
    config.batch.update(tokens_per_batch=3072, buckets=4, max_length=192)
    config.decode.max_new_tokens = 48
    config.task.score_examples = 100
    config.model.update(
        layers=2,
        width=192,
        heads=4,
        head_dim=48,
        feed_forward_width=512,
        activation="geglu_tanh",
        positions="t5",
        norm="rms_norm",
        norm_place="pre",
        attention_bias=False,
        feed_forward_bias=False,
        max_length=256,
    )
    config.optimizer.update(
        learning_rate=3e-3, warmup_steps=config.steps // 10, schedule="cosine", clip_norm=1.0
    )
    return config
