"""Recordings to text: trained on two tones, scored, and written by the command."""

import gzip
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile

from tests.entry import command
from tests.tiny import config_of, make_trainer, trained
from transformer_lab import open_run
from transformer_lab.commands.transcribe import show
from transformer_lab.data.audio import AudioFile
from transformer_lab.data.spoken import SpokenConfig, load_spoken
from transformer_lab.decoding.speech import Marks, Segment
from transformer_lab.decoding.word_times import Word
from transformer_lab.errors import LabError
from transformer_lab.ops.spectrograms import RATE
from transformer_lab.tasks.scores import corpus_scores
from transformer_lab.training.runs import write_new
from transformer_lab.viewing.capture import Inputs, capture, captured

WORDS = {"low": 300, "high": 3000}  # what is said, and the Hz of the tone
SMALL = {
    "tensorboard": False, "mesh.data": 1, "model.layers": 1, "model.width": 16, "model.heads": 2,
    "model.head_dim": 8, "model.feed_forward_width": 32, "model.frames": 20, "model.bins": 8,
    "model.max_length": 12, "tokenizer.kind": "word", "batch.rows": 8, "batch.length": 4,
    "optimizer.learning_rate": 1e-2, "optimizer.warmup_steps": 5, "data.source": "files",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tones of 0.1 to 0.2 s of other loudness and rate, eight to train on and four to test with."""
    path, rng = tmp_path_factory.mktemp("tones"), np.random.default_rng(0)
    for split, count in (("train", 4), ("validation", 1), ("test", 2)):
        rows = []
        for word, hertz in WORDS.items():
            for i in range(count):
                rate = (8_000, 16_000)[i % 2]
                t = np.arange(int(rng.uniform(0.1, 0.2) * rate)) / rate
                sound = rng.uniform(0.1, 0.9) * np.sin(2 * np.pi * hertz * t)
                soundfile.write(path / f"{split}_{word}{i}.wav", sound, rate)
                rows.append(
                    json.dumps({"audio": f"{split}_{word}{i}.wav", "text": f"{word} {word}"})
                )
        (path / f"{split}.jsonl").write_text("\n".join(rows), "utf-8")
    return path


def config(folder, **changes):
    return config_of("whisper", "transcription", SMALL, **{"data.path": str(folder)}, **changes)


@pytest.fixture(scope="module")
def learned(folder):
    trainer = make_trainer(config(folder), 1)
    params, losses = trained(trainer, 40)
    return trainer, params, losses


@pytest.mark.slow
def test_two_tones_are_told_apart_and_their_words_are_scored(learned):
    trainer, params, losses = learned
    assert losses[-1] < 0.1 * losses[0]
    found = trainer.task.score(params, "test", trainer.place, True)
    assert found.values == {"wer": 0.0, "wer_english": 0.0, "num_examples": 4.0}
    assert (
        sorted(row[1:] for row in found.samples)
        == [("high high",) * 2] * 2 + [("low low",) * 2] * 2
    )


def test_translations_have_a_bleu_and_languages_are_counted(learned, monkeypatch):
    trainer, params, _ = learned
    task = trainer.task
    data = replace(task.sections["data"], translated=True, language="fr")
    monkeypatch.setitem(task.sections, "data", data)
    monkeypatch.setitem(task.__dict__, "marks", Marks(1, languages={"en": 4, "fr": 5}))
    heard = {"low0": "fr", "low1": "en", "high1": "fr"}  # and nothing in the fourth

    def transcribed(given, audio):
        name = audio.path.stem.removeprefix("test_")
        if name in heard:
            yield Segment(0.0, 0.1, f"um {name[:-1]} low", -0.1, 0.0, 0.0, heard[name])

    monkeypatch.setattr(task, "_transcriber", transcribed)
    found = task.score(params, "test", trainer.place, True)
    values, signature = corpus_scores(*map(list, zip(*[r[1:] for r in found.samples], strict=True)))
    assert values.items() <= found.values.items() and found.notes == {"bleu_signature": signature}
    # Of eight words one is another and two are missing; "um" is one too many three times.
    assert found.values["wer"] == 6 / 8 and found.values["wer_english"] == 3 / 8
    assert found.values["language_accuracy"] == 2 / 4


@pytest.mark.slow
def test_losses_on_a_mesh_are_those_of_one_device(folder, learned):
    trainer, params, _ = learned
    batch = next(iter(trainer.task.eval_batches("test")))
    sums = jax.jit(trainer.task.metrics)(params, batch)
    mesh = {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}
    other = make_trainer(config(folder, **mesh), 8)
    placed = other.with_params(other.init(), jax.device_get(params)).params
    found = jax.jit(other.task.metrics)(placed, other.place(batch))
    for name, pair in sums.items():
        np.testing.assert_allclose(found[name], pair, rtol=1e-5, err_msg=name)
    split = placed["encoder"]["layer_0"]["attention"]["query"]["kernel"].sharding.spec
    assert tuple(split) == ("fsdp", "tensor")


def test_silence_behind_a_recording_and_rows_beside_it_change_nothing(learned):
    trainer, params, _ = learned
    batch = next(iter(trainer.task.eval_batches("test")))
    run = jax.jit(
        lambda b: trainer.task.model.apply({"params": params}, b["features"], b["target"])
    )
    whole = run(batch)
    others = {name: np.where(np.arange(8)[:, None] == 1, x.reshape(8, -1), 0).reshape(x.shape)
              for name, x in batch.items()}  # fmt: skip
    np.testing.assert_allclose(run(others)[1], whole[1], atol=1e-5)


@pytest.mark.slow
def test_the_command_writes_every_format_and_goes_on_behind_a_bad_file(folder, learned, tmp_path):
    trainer, params, _ = learned
    write_new(config(folder), trainer.task, trainer.mesh, params, tmp_path / "run")
    good, bad = str(folder / "test_low0.wav"), str(tmp_path / "bad.wav")
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    args = f"--workdir={tmp_path / 'run'}"
    assert command("transcribe", good, args).stdout == b"low low\n"
    done = command("transcribe", bad, good, args, "--format=srt")
    assert done.returncode == 2 and b"bad.wav: cannot be read as audio" in done.stderr
    number, times, text = done.stdout.decode().splitlines()[:3]
    assert (number, text) == ("1", "low low") and times.startswith("00:00:00,000 --> 00:00:00,1")
    vtt = command("transcribe", good, args, "--format=vtt").stdout.decode()
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:00.1")
    found = json.loads(command("transcribe", good, args, "--format=json").stdout)
    assert found["text"] == "low low" and found["segments"][0]["temperature"] == 0.0
    (segment,) = open_run(tmp_path / "run", {"mesh.data": 1}).transcribe(good)
    assert segment._asdict() | {"words": []} == found["segments"][0] and segment.text == "low low"
    timed = command("transcribe", good, args, "--word_timestamps", "--format=json").stdout
    (row,) = json.loads(timed)["segments"]
    assert [word["word"] for word in row["words"]] == ["low", "low"]
    times = [t for word in row["words"] for t in (word["start"], word["end"])]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= row["end"]
    assert all(0 < word["probability"] <= 1 for word in row["words"])
    assert b"no file of audio" in command("transcribe", args).stderr
    translated = command("transcribe", good, args, "--task=translate")
    assert translated.returncode == 2 and b"does not translate" in translated.stderr


def test_subtitles_show_the_words_at_their_times(capsys):
    words = Word("Low,", 1.0, 1.4, 0.9), Word("high", 1.5, 1.8, 0.8), Word("-->", 1.8, 2.0, 0.7)
    segment = Segment(1.0, 2.0, "Low, high -->", -0.1, 0.0, 0.0, words=words)
    show([segment, segment._replace(words=())], "srt", "a.wav")
    cues = ["1.000|1.400|Low,", "1.500|1.800|high", "1.800|2.000|->", "1.000|2.000|Low, high ->"]
    wanted = []
    for number, cue in enumerate(cues, 1):
        start, end, text = cue.replace(".", ",").split("|")
        wanted += [str(number), f"00:00:0{start} --> 00:00:0{end}", text, ""]
    assert capsys.readouterr().out.splitlines() == wanted
    show([segment], "vtt", "a.wav")
    times = "00:00:01.000 --> 00:00:02.000"
    line = "Low, <00:00:01.500>high <00:00:01.800>->"  # the cue's own beginning is not repeated
    assert capsys.readouterr().out.splitlines() == ["WEBVTT", "", times, line, ""]
    show([segment], "txt", "a.wav")
    assert capsys.readouterr().out == "Low, high -->\n"


def test_sound_is_looked_at_along_its_transcript(folder, learned, tmp_path):
    trainer, params, _ = learned
    task, file = trainer.task, str(folder / "test_high0.wav")
    maps = capture(task, params, Inputs(audio=file))
    cross, timed = maps["cross-attention"], maps["alignment"]
    samples = AudioFile(file, RATE).take(0, 10_000)
    frames = round(len(samples) / RATE / 0.02)
    assert cross.rows == ["high", "high", "</s>"] and len(cross.columns) == frames
    assert [row.split()[0] for row in timed.rows] == cross.rows and timed.rows[0][-2:] == " s"
    assert cross.picture.shape == (8, 2 * frames, 3) and cross.seconds == 0.02
    sound = np.pad(samples, (0, 20 * 160 - len(samples)))
    features = jnp.asarray(task.features(sound[None]))
    read = jnp.asarray([[*task.prompt, *task.target_of("high high")[:-1]]])
    whole = captured(task.model, params, features, read)["decoder"]["layer_0"]["cross_attention"]
    want = whole["weights"][0][0][:, len(task.prompt) - 1 :, :frames]
    np.testing.assert_allclose(cross.weights[0], want, atol=1e-5)
    np.testing.assert_array_equal(timed.weights, cross.weights)  # one layer: all of its heads
    given = capture(task, params, Inputs(audio=file, text_b="low"))
    assert given["cross-attention"].rows == ["low", "</s>"]
    for inputs in (Inputs("a text"), Inputs(), Inputs(audio=file, image="a.png")):
        with pytest.raises(LabError, match="give --audio=FILE and no --text or --image"):
            capture(task, params, inputs)


def test_a_text_that_leaves_no_room_for_the_marks_is_refused(folder):
    with pytest.raises(LabError, match="batch.length = 12 and the marks"):
        make_trainer(config(folder, **{"batch.length": 12}), 1)


def test_prompts_without_speech_or_recording_are_counted_and_left_out(tmp_path):
    sounds = tmp_path / "sounds" / "en"
    for name in ("a", "b", "c", "digits/1"):
        (sounds / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(sounds / f"{name}.wav", np.zeros(9), 8_000)
    lines = (
        "; a list\n\na: Press <beep> one. [beep]\nb: (tones)\nc: press one.\ndigits/1: one\nd: x\n"
    )
    (tmp_path / "core-sounds-en.txt.gz").write_bytes(gzip.compress(lines.encode()))
    shares = {"validation_share": 0.0, "test_share": 0.0}
    found = load_spoken(SpokenConfig(path=str(tmp_path), **shares))
    assert sorted(row.text for row in found.train) == ["Press one.", "one", "press one."]
    assert found.report["no_recording"] == found.report["no_speech"] == 1
    assert {row.path for row in found.train} == {
        str(sounds / f"{n}.wav") for n in ("a", "c", "digits/1")
    }
    again = load_spoken(SpokenConfig(path=str(tmp_path), test_share=0.3, validation_share=0.0))
    assert again.fingerprint() != found.fingerprint()
    texts = {row.text.casefold() for row in again.test}
    assert texts and not texts & {row.text.casefold() for row in again.train}
