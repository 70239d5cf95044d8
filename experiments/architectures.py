"""What do the published decoders count and cost?

python -m transformer_lab sweep --experiment=experiments/architectures.py --workdir=runs/sizes

Nothing is trained: the figures of `python -m transformer_lab inspect --table=decoders` as a sweep's
table, in which report.csv has all digits. `published` are the paper's own parameters. FLOPs a token
are those of training at the model's full length; a cache's bytes are of one token in bfloat16. Both
scales are the same; 2026-11-28: 56 rows in seconds on a CPU, within 1.8 % of what is published.
"""

from transformer_lab.models import costs, decoder
from transformer_lab.models.presets import DECODERS
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import vary


def get_experiment(scale: str) -> Experiment:
    """A row a size."""
    return Experiment(
        config="",
        variations=vary("preset", {name: name for name in DECODERS}),
        metric="parameters",
        columns=("published", "layers", "width", "training_flops", "cache_bytes"),
        measure=measure,
    )


def measure(settings: dict) -> dict[str, float]:
    """Of one preset."""
    preset = DECODERS[settings["preset"]]
    found = {
        "parameters": sum(costs.parameter_groups(preset.kind, preset.config).values()),
        "layers": preset.config.layers,
        "width": preset.config.width,
        "training_flops": decoder.training_flops(preset.config),
        "cache_bytes": decoder.cache_bytes(preset.config),
    }
    return found | ({"published": preset.published} if preset.published else {})
