"""One small T5 for six tasks: translation, summaries, sentiment, questions, next sentences, spans.

    python -m transformer_lab.train --config=configs/t5_mixture.py --workdir=runs/t5
    python -m transformer_lab.translate --workdir=runs/t5 "summarize: Choose Tools - Macros. ..."

`:TASK` trains the same model as long on one task: translate, summarize, sentiment, question,
next_sentence or spans. A CPU, about an hour.
"""

from transformer_lab.data.text_tasks import TASKS
from transformer_lab.errors import LabError, nearest
from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """`arg` is empty or a task's name."""
    if arg and arg not in TASKS:
        raise LabError(f'configs/t5_mixture.py:"{arg}" is unknown{nearest(arg, TASKS)}')
    config = default_config(model="encoder_decoder", task="text_to_text")
    config.steps = 3000
    config.eval_every = 1000
    config.save_every = 200
    config.average = 5
    if arg:
        config.data.tasks = (arg,)
    config.data.limit = 10_000
    config.data.temperature = 1.0
    config.tokenizer.update(kind="unigram", vocab_size=8000, extra_ids=32)
    config.batch.update(tokens_per_batch=4096, buckets=6, max_length=192)
    config.decode.max_new_tokens = 48
    config.task.score_examples = 100
    config.model.update(
        layers=3,
        width=256,
        heads=4,
        head_dim=64,
        feed_forward_width=512,
        activation="geglu_tanh",
        positions="t5",
        norm="rms_norm",
        norm_place="pre",
        attention_bias=False,
        feed_forward_bias=False,
        scale_attention=False,
        max_length=256,
    )
    config.optimizer.update(learning_rate=2e-3, warmup_steps=400, schedule="cosine")
    return config
