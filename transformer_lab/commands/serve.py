"""Serves a run over HTTP, in the form of OpenAI's API, to many clients at once.

    transformer_lab serve --workdir=runs/gpt --port=8000

A language model answers /v1/completions and /v1/chat/completions (whole, or streamed), an encoder
/v1/embeddings; there are /v1/models, /health, /metrics for Prometheus, and a page to chat at /.
Only this machine is served unless --host says otherwise; the environment variable
TRANSFORMER_LAB_API_KEY sets a key that every request must bring. What a request leaves open is as
in the run's config, which --config.decode.KEY=VALUE changes. See docs/serving.md.
"""

import os

from absl import flags

from transformer_lab import cli
from transformer_lab.decoding.continuous import Engine
from transformer_lab.errors import LabError
from transformer_lab.opened import embedding_task
from transformer_lab.tasks.abilities import Continues, EmbedsTexts
from transformer_lab.training.writers import log

KEY = "TRANSFORMER_LAB_API_KEY"
LOCAL = ("127.0.0.1", "localhost", "::1")


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("host", "127.0.0.1", "The address to listen at.")
    flags.DEFINE_integer("port", 8000, "The port to listen at.", lower_bound=0, upper_bound=65535)
    flags.DEFINE_integer("slots", 8, "Texts that are continued at once.", lower_bound=1)
    flags.DEFINE_integer("waiting", 256, "Texts that may wait for a slot.", lower_bound=1)
    flags.DEFINE_integer("context", 0, "Most tokens of a text; 0: the model's.", lower_bound=0)
    flags.DEFINE_integer("prefix_megabytes", 256, "Memory for prompts' beginnings.", lower_bound=0)


def main(_: list[str]) -> None:
    args, key = flags.FLAGS, os.environ.get(KEY, "")
    try:
        import uvicorn

        from transformer_lab.serving.api import Service
    except ImportError as error:
        raise LabError(f"{error.name} is missing: pip install 'transformer_lab[serve]'") from error
    if args.host not in LOCAL and not key:
        raise LabError(f"--host={args.host} opens the server to others: set {KEY} to a key first")
    name, parts = opened()
    service = Service(name, **parts, key=key)
    config = uvicorn.Config(
        service.app, args.host, args.port, log_level="warning", timeout_graceful_shutdown=30,
        limit_concurrency=4 * args.waiting,
    )  # fmt: skip
    server = uvicorn.Server(config)
    log(f"{name} at http://{args.host}:{args.port}; Ctrl-C or SIGTERM ends it")
    try:
        server.run()
    finally:
        if service.worker is not None:
            service.worker.close()


def opened() -> tuple[str, dict]:
    """The run's name, and what it can do: continue texts, or map them to vectors."""
    from transformer_lab.serving.worker import Worker

    args, config = flags.FLAGS, cli.get_config()
    name, kind = cli.get_workdir().name, config.task.kind
    trainer, params = cli.open_run()
    task = trainer.task
    if isinstance(task, Continues):
        engine = Engine(
            task.model, params, task.decode_settings(), eos_id=task.tokenizer.eos_id,
            slots=args.slots, waiting=args.waiting, context=args.context,
            prefix_bytes=args.prefix_megabytes * 2**20,
        )  # fmt: skip
        engine.warm_up()
        return name, {"task": task, "worker": Worker(engine)}
    if isinstance(task, EmbedsTexts):
        vectors = task.text_vectors
    elif config.model.kind == "encoder":
        vectors = embedding_task(task.model_config, task.assets(), "mean", True).embed
    else:
        raise LabError(f"{args.workdir} holds a run of {kind}: it neither writes nor embeds texts")

    def embed(texts):
        size = sum(map(len, task.tokenizer.encode_batch(texts)))
        return vectors(params, texts, trainer.place), size

    return name, {"embed": embed}
