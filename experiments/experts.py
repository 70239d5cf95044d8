"""What do experts gain at equal computing, and do they part the work by domain?

python -m transformer_lab sweep --experiment=experiments/experts.py --workdir=runs/experts

One byte-level decoder learns six domains at once, as many bytes of each: the press, the learned
prose and the fiction of the Brown corpus, and the help of LibreOffice in English, French and
German. Rows: `experts`, eight in each layer, of which two work for a byte (Mixtral's routing, which
drops nothing); `unbalanced`, the same without the balance loss; `dense`, a feed-forward of the two
that work, so that a byte takes as many FLOPs; `dense_total`, one of all eight, so that there are as
many parameters. What experts gain at equal computing is `dense` less `experts` in `bits_per_byte`.

Columns are the bits per byte of each domain on documents that were held out;
`load_variation`, the standard deviation over the mean of the experts' bytes, 0 where all have as
many; and `information`, the mutual information of expert and domain in bits, each the mean over
layers, with all domains as likely: 0 where a domain says nothing of the experts that its bytes
choose, log2 6 = 2.58 where it says all.

Scale cpu: two layers of width 64, 800 steps of 1,024 bytes, Muon at one rate, three seeds.

2026-11-29, one core (AMD EPYC) at the lowest priority beside other work, 12 runs of 0.5 to 2.5
minutes of processor time: `experts` 2.715 bits per byte, `unbalanced` 2.725, `dense` 2.723,
`dense_total` 2.687; a seed's gain is 0.007 on average with a deviation of 0.015, which is none
that three seeds could show. Loads vary by 0.19, without the loss by 1.10; the information is 0.011
and 0.023 bits. The table by domain: docs/beyond_attention.md.
"""

from collections.abc import Iterator
from functools import cache

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure

from transformer_lab.data.documents import DocumentsConfig
from transformer_lab.data.fetch import fetch
from transformer_lab.data.sources import brown, libreoffice_help
from transformer_lab.data.splits import Splits, shuffled
from transformer_lab.layers.experts import Experts
from transformer_lab.models.decoder import training_flops
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds
from transformer_lab.tasks.base import count_parameters
from transformer_lab.tasks.language_modeling import LanguageModeling
from transformer_lab.training.config import default_config, resolve
from transformer_lab.training.mesh import make_mesh
from transformer_lab.training.trainer import Trainer

GENRES = {  # of the Brown corpus, by domain
    "press": ("news", "editorial", "reviews"),
    "learned": ("learned", "government"),
    "fiction": ("fiction", "mystery", "adventure", "romance", "science_fiction"),
}
LANGUAGES = {"help_en": "en", "help_fr": "fr", "help_de": "de"}
DOMAINS = (*GENRES, *LANGUAGES)
COUNT, TOP_K = 8, 2
TRAIN_BYTES, TEST_BYTES = 600_000, 40_000  # of each domain, to the end of a document
SIZES = {  # layers, width, the width of an expert, rows of 128 bytes a step, and steps
    "cpu": {"layers": 2, "width": 64, "expert": 96, "rows": 8, "steps": 800},
    "paper": {"layers": 6, "width": 384, "expert": 768, "rows": 64, "steps": 10_000},
}
ROWS = {  # changes of the model: an expert's width is multiplied by `wider`
    "dense": {"feed_forward": "dense", "wider": TOP_K},
    "dense_total": {"feed_forward": "dense", "wider": COUNT},
    "experts": {"feed_forward": "experts", "balance_loss": 0.01},
    "unbalanced": {"feed_forward": "experts", "balance_loss": 0.0},
}


def get_experiment(scale: str) -> Experiment:
    """Four rows of three seeds."""
    return Experiment(
        config="",
        variations=seeds([Variation(name, changes) for name, changes in ROWS.items()], 3),
        metric="bits_per_byte",
        columns=(
            *(f"bits_per_byte_{domain}" for domain in DOMAINS),
            "load_variation", "information", "parameters", "flops_a_byte",
        ),
        changes=SIZES[scale],
        base={"experts": "dense", "dense_total": "dense", "unbalanced": "experts"},
        measure=measure,
        plot=plot,
    )  # fmt: skip


def plot(table) -> Figure:
    """What each row gains in each domain over `dense`, paired by seed, with the standard error."""
    figure = Figure((7, 3.6), layout="constrained")
    axes, rows = figure.subplots(), {row.name: row for row in table.rows}
    for i, name in enumerate(("experts", "unbalanced", "dense_total")):
        gains, errors = [], []
        for domain in DOMAINS:
            ours, dense = (rows[x].by_seed(f"test/bits_per_byte_{domain}") for x in (name, "dense"))
            each = np.array([dense[seed] - ours[seed] for seed in ours if seed in dense])
            gains.append(each.mean())
            errors.append(each.std(ddof=1) / len(each) ** 0.5)
        places = np.arange(len(DOMAINS)) + 0.25 * (i - 1)
        axes.bar(places, gains, 0.25, yerr=errors, color=f"C{i}", label=name)
    axes.axhline(0, color="black", lw=0.8)
    axes.set_xticks(range(len(DOMAINS)), DOMAINS)
    axes.set_ylabel("bits per byte less than dense")
    axes.legend(loc="upper left", ncols=3)
    axes.set_ylim(top=0.08)
    return figure


def texts_of(domain: str) -> list[str]:
    """The documents of a domain, each once, in an order that is the same every time."""
    if domain in GENRES:
        documents = brown.read(fetch(brown.PACKAGE))
        found = [brown.text(one) for one in documents if one.genre in GENRES[domain]]
    else:
        language = LANGUAGES[domain]
        folder = fetch(libreoffice_help.PACKAGES[language])
        root = folder.rglob(f"{libreoffice_help.FOLDERS[language]}/text/**/*.html")
        pages = (libreoffice_help.blocks(file.read_text("utf-8")) for file in sorted(root))
        found = [
            "\n".join(" ".join(libreoffice_help.sentences(block)) for block in page.values())
            for page in pages
        ]
    return shuffled(list({text for text in found if text}), 0)


@cache
def domains() -> dict[str, tuple[list[str], list[str]]]:
    """The documents of each domain to train on, and those that are held out."""
    found = {}
    for domain in DOMAINS:
        documents = iter(texts_of(domain))
        held, train = (list(_up_to(documents, n)) for n in (TEST_BYTES, TRAIN_BYTES))
        found[domain] = train, held
    return found


def _up_to(documents: Iterator[str], size: int) -> Iterator[str]:
    """The next documents until they have so many bytes of UTF-8."""
    while size > 0:
        text = next(documents)
        size -= len(text.encode())
        yield text


def load_domains(_config: DocumentsConfig) -> Splits:
    """The training documents of all domains."""
    train = [text for domain in DOMAINS for text in domains()[domain][0]]
    return Splits(train, [], [], {"train": len(train)}, "those of the two packages")


class DomainModeling(LanguageModeling):
    """Language modelling on all domains at once; each domain is a split of its own besides."""

    load_data = load_domains

    def examples(self, split: str) -> list[str]:
        return domains()[split][1] if split in DOMAINS else super().examples(split)


def config_of(settings: dict):
    """The run's config, of a row's settings."""
    config = default_config(model="decoder", task="language_modeling")
    config.steps, config.seed = settings["steps"], settings["seed"]
    config.tokenizer.kind = "byte"
    config.batch.update(rows=settings["rows"], length=128)
    config.task.update(samples=0, eval_stride=128)
    config.model.update(
        layers=settings["layers"], width=settings["width"], heads=settings["width"] // 32,
        head_dim=32, feed_forward=settings["feed_forward"],
        feed_forward_width=settings["expert"] * settings.get("wider", 1),
        activation="geglu_tanh", norm="rms_norm", positions="rope", attention_bias=False,
        feed_forward_bias=False, dropout=0.0, max_length=128,
    )  # fmt: skip
    balance = settings.get("balance_loss", 0.0)
    config.model.experts.update(count=COUNT, top_k=TOP_K, balance_loss=balance)
    config.optimizer.update(
        name="muon", learning_rate=1e-2, warmup_steps=50, schedule="linear", clip_norm=1.0
    )
    return config


def measure(settings: dict) -> dict[str, float]:
    """Trains one model; its bits per byte, and where its experts work."""
    resolved = resolve(config_of(settings))
    task = DomainModeling(
        resolved.model_kind, resolved.model, resolved.sections, seed=resolved.run.seed
    )
    trainer = Trainer(resolved.run, task, make_mesh(resolved.run.mesh))
    state, batches = trainer.init(), task.train_batches()
    for _ in range(trainer.steps):
        state, _ = trainer.train_step(state, trainer.place(next(batches)))
    batches.close()
    params = trainer.whole(state)
    bits = {name: trainer.evaluate(params, name)["bits_per_byte"] for name in DOMAINS}
    found = {"bits_per_byte": float(np.mean(list(bits.values())))}
    found |= {f"bits_per_byte_{name}": value for name, value in bits.items()}
    found["parameters"] = count_parameters(params)
    found["flops_a_byte"] = training_flops(task.model_config, 128)
    if settings["feed_forward"] == "experts":
        found |= work_of_experts(loads(task, trainer, params))
    return found


def loads(task, trainer, params) -> Float[np.ndarray, "domains layers experts"]:
    """The share of a domain's choices that each expert of each layer has."""

    @jax.jit
    def chosen(params, batch):
        found = []

        def watch(call, args, kwargs, context):
            if isinstance(context.module, Experts) and context.method_name == "__call__":
                found.append(counts(args[0], context.module, batch["mask"]))
            return call(*args, **kwargs)

        with nn.intercept_methods(watch):
            task.model.apply({"params": params}, batch["tokens"])
        return jnp.stack(found)

    every = []
    for domain in DOMAINS:
        some = [chosen(params, trainer.place(batch)) for batch in task.eval_batches(domain)]
        every.append(np.sum(some, axis=0, dtype=np.float64))
    every = np.stack(every)
    return every / every.sum(axis=-1, keepdims=True)


def counts(x: Float[Array, "b t d"], module: Experts, real) -> Float[Array, "experts"]:
    """How many of the real tokens choose each expert."""
    router = module.get_variable("params", "router")
    logits = jnp.einsum("btd,de->bte", x.astype(jnp.float32), router, precision="highest")
    _, expert = jax.lax.top_k(logits, TOP_K)
    return (jax.nn.one_hot(expert, COUNT).sum(axis=2) * real[..., None]).sum(axis=(0, 1))


def work_of_experts(shares: Float[np.ndarray, "domains layers experts"]) -> dict[str, float]:
    """The variation of the experts' loads, and what an expert says of the domain, in bits."""
    mean = shares.mean(axis=0)
    variation = mean.std(axis=-1) / mean.mean(axis=-1)
    ratio = np.log2(np.where(shares > 0, shares, 1.0) / np.where(mean > 0, mean, 1.0))
    information = (shares * ratio).sum(axis=-1).mean(axis=0)
    return {"load_variation": float(variation.mean()), "information": float(information.mean())}
