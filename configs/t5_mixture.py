"""One small T5 for five tasks: translation, summaries, sentiment, questions, next sentences.

    python -m transformer_lab train --config=configs/t5_mixture.py --workdir=runs/t5
    python -m transformer_lab translate --workdir=runs/t5 "summarize: Choose Tools - Macros. ..."

`:TASK` trains the same model on one task alone, translate, summarize, sentiment, question or
next_sentence, for as many of its examples as the mixture draws. experiments/multitask.py is all of
these side by side. Hidden spans are a sixth task: --config.data.tasks="('translate','spans')".

Rows hold several pairs each, so that a batch is of all tasks: in buckets of like lengths each batch
was of one, and after 2,000 steps the mixture translated at 2.3 BLEU where the task alone had 20.1.

T5's block, but for the scores, which are scaled: unscaled ones are for Adafactor, whose steps are
in proportion to a parameter's size. By Adam 250 steps of translation reach 4.39 nats without the
scale (rate 1e-3) and 3.63 with it (3e-3).
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

STEPS = 3000
# Of each task's examples in the mixture: a step has 62 of all, at rates of sizes up to 10,000.
EPOCHS = {"translate": 4.96, "summarize": 4.96, "sentiment": 4.91, "question": 4.96,
          "next_sentence": 1.17}  # fmt: skip


def get_config(arg: str = ""):
    """`arg` is empty or a task's name."""
    known("configs/t5_mixture.py:", arg, ("", *EPOCHS))
    config = default_config(model="encoder_decoder", task="text_to_text")
    config.steps, config.epochs = STEPS, EPOCHS.get(arg)
    config.eval_every = 1000
    config.save_every = 200
    config.average = 5
    config.data.tasks = (arg,) if arg else tuple(EPOCHS)
    config.data.limit = 10_000
    config.data.temperature = 1.0
    config.tokenizer.update(kind="unigram", vocab_size=8000, extra_ids=32)
    config.batch.update(tokens_per_batch=3584, buckets=4, max_length=192, packed=(384, 64))
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
        max_length=384,
    )
    config.optimizer.update(learning_rate=3e-3, warmup_steps=100, schedule="cosine", clip_norm=1.0)
    return config
