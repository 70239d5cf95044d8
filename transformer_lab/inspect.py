"""Tables about models: `python -m transformer_lab.inspect --table=encoder_decoders`.

Each published size with the parameters that this code gives it, by shapes alone, beside the
paper's figure.
"""

from absl import flags
from rich.console import Console
from rich.table import Table

from transformer_lab import cli
from transformer_lab.errors import LabError, nearest
from transformer_lab.models import parameter_shapes, presets
from transformer_lab.tasks.base import count_parameters

flags.DEFINE_string("table", "encoder_decoders", f"One of: {', '.join(presets.TABLES)}.")


def main(_: list[str]) -> None:
    name = flags.FLAGS.table
    if name not in presets.TABLES:
        raise LabError(f'--table="{name}" is unknown{nearest(name, presets.TABLES)}')
    table = Table("preset", "parameters", "published", "difference", "source", "note")
    for preset_name, preset in presets.TABLES[name].items():
        count = count_parameters(parameter_shapes(preset.kind, preset.config))
        stated = preset.published
        table.add_row(
            preset_name,
            f"{count:,}",
            "-" if stated is None else f"{stated / 1e6:,.0f} M",
            "-" if stated is None else f"{100 * (count / stated - 1):+.1f} %",
            preset.source,
            preset.note,
        )
    Console(width=None if Console().is_terminal else 160).print(table)


if __name__ == "__main__":
    cli.main(main)
