"""Writes what is said in audio files, of any length and of every common format.

    transformer_lab transcribe talk.flac --workdir=runs/whisper --format=srt

`--format` is txt, srt, vtt or json; txt shows each piece of text as soon as it is known.
`--language=fr` says what is spoken (otherwise the beginning of each file decides), and
`--task=translate` writes English. `--word_timestamps` adds the time of each word: json has a list
of them, vtt a time before each word of a cue, srt a cue for each word. Other settings are keys of
the section `speech`.
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
    flags.DEFINE_bool("word_timestamps", False, "Also when each word is said; not in txt.")
    flags.DEFINE_enum("format", "txt", FORMATS, "How it is written.")


def main(files: list[str]) -> int:
    args = flags.FLAGS
    if not files:
        raise LabError("no file of audio is named: transcribe FILE ... --workdir=DIR")
    instead = "import_ct2 or import_hf makes one that does"
    trainer, params = cli.open_run(Transcribes, "transcribe", instead)
    task = trainer.task
    changes = {"language": args.language, "task": args.task, "word_times": args.word_timestamps}
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
        rows = [s._asdict() | {"words": [w._asdict() for w in s.words]} for s in segments]
        text = " ".join(row["text"] for row in rows)
        language = rows[0]["language"] if rows else None
        whole = {"file": file, "language": language, "text": text, "segments": rows}
        print(json.dumps(whole, ensure_ascii=False), flush=True)
        return
    if form == "vtt":
        print("WEBVTT\n", flush=True)
    number = 0
    for segment in segments:
        if form == "txt":
            print(segment.text, flush=True)
            continue
        for start, end, text in cues(segment, form):
            number += 1
            point = "," if form == "srt" else "."
            times = " --> ".join(clock(t, point) for t in (start, end))
            print("\n".join([*[str(number)] * (form == "srt"), times, text, ""]), flush=True)


def cues(segment: Segment, form: str) -> Iterable[tuple[float, float, str]]:
    """Start, end and text of a segment's subtitles: of words with times, SRT has one for each, and
    WebVTT the time of each word before it, by which players show how far the speech is. (A time
    in WebVTT must be later than those before it and lie within the cue.)"""
    plain = lambda text: text.replace("-->", "->")  # noqa: E731
    if form == "srt" and segment.words:
        return [(word.start, word.end, plain(word.word)) for word in segment.words]
    if not segment.words:
        return [(segment.start, segment.end, plain(segment.text))]
    parts, last = [], segment.start
    for word in segment.words:
        later = last < word.start < segment.end
        parts.append(f"<{clock(word.start, '.')}>" * later + plain(word.word))
        last = max(last, word.start)
    return [(segment.start, segment.end, " ".join(parts))]


def clock(seconds: float, point: str) -> str:
    """Seconds as a subtitle's time: 3725.5 is 01:02:05,500, with `point` before the thousandths."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, seconds = divmod(whole, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}{point}{thousandths:03}"
