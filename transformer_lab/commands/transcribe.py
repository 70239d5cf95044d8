"""Writes what is said in audio files, of any length and of every common format.

    transformer_lab transcribe talk.flac --workdir=runs/whisper --format=srt

`--format` is txt, srt, vtt or json; txt shows each piece of text as soon as it is known.
`--language=fr` says what is spoken (otherwise the beginning of each file decides), and
`--task=translate` writes English. Other settings are keys of the section `speech`.
"""

import json
import sys
from collections.abc import Iterable

from absl import flags

from transformer_lab import cli
from transformer_lab.data.audio import AudioFile
from transformer_lab.decoding.speech import TASKS, Segment
from transformer_lab.errors import LabError
from transformer_lab.ops.spectrograms import RATE
from transformer_lab.tasks.abilities import Transcribes
from transformer_lab.training.writers import log

WORDS = True  # arguments that are no flags
FORMATS = ("txt", "srt", "vtt", "json")


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("language", "", "What is spoken, such as fr; empty: it is found out.")
    flags.DEFINE_enum("task", "", ["", *TASKS], "What is written; empty: as the config says.")
    flags.DEFINE_enum("format", "txt", FORMATS, "How it is written.")


def main(files: list[str]) -> int:
    args = flags.FLAGS
    if not files:
        raise LabError("no file of audio is named: transcribe FILE ... --workdir=DIR")
    trainer, params = cli.open_run()
    task = trainer.task
    if not isinstance(task, Transcribes):
        kind = cli.get_config().task.kind
        raise LabError(f"a run of {kind} does not transcribe: import_ct2 or import_hf makes one")
    changes = {"language": args.language, "task": args.task}
    transcriber = task.transcriber(**{name: value for name, value in changes.items() if value})
    sys.stdout.reconfigure(encoding="utf-8")
    failed = 0
    for file in files:
        try:
            if len(files) > 1:
                log(f"{file}:")
            show(transcriber({"params": params}, AudioFile(file, RATE)), args.format, file)
        except LabError as error:
            if len(files) == 1:
                raise
            failed = 2  # the others are written all the same
            log(f"error: {error}")
    return failed


def show(segments: Iterable[Segment], form: str, file: str) -> None:
    """Writes a file's segments, each as soon as it is known; as JSON one object for the file."""
    if form == "json":
        rows = [segment._asdict() for segment in segments]
        whole = {"file": file, "text": " ".join(row["text"] for row in rows), "segments": rows}
        print(json.dumps(whole, ensure_ascii=False), flush=True)
        return
    if form == "vtt":
        print("WEBVTT\n", flush=True)
    for number, segment in enumerate(segments, 1):
        if form == "txt":
            print(segment.text, flush=True)
            continue
        point = "," if form == "srt" else "."
        times = " --> ".join(clock(t, point) for t in (segment.start, segment.end))
        head = [str(number)] * (form == "srt")
        print("\n".join([*head, times, segment.text.replace("-->", "->"), ""]), flush=True)


def clock(seconds: float, point: str) -> str:
    """Seconds as a subtitle's time: 3725.5 is 01:02:05,500, with `point` before the thousandths."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, seconds = divmod(whole, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}{point}{thousandths:03}"
