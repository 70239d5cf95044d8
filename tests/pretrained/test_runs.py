"""Hugging Face directories as runs that the other commands open, and back."""

import io
import json
import re
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
from ml_collections import ConfigDict
from PIL import Image

from tests.entry import command
from tests.pretrained.fixtures import DIRECTORIES, load, random_params, same_trees
from tests.text.test_model_files import LINES, spiece
from tests.tiny import make_trainer, tiny_config
from transformer_lab import pretrained, text
from transformer_lab.errors import LabError
from transformer_lab.models import vision
from transformer_lab.opened import open_run
from transformer_lab.pretrained.beside import export_run, read_tokenizer, tokenizer_files
from transformer_lab.pretrained.hub import PIXELS, read_tensors
from transformer_lab.pretrained.running import RUNNERS
from transformer_lab.training import imported, runs
from transformer_lab.training.checkpoint import Checkpoints
from transformer_lab.training.config import resolve
from transformer_lab.training.mesh import make_mesh

tokenizers = pytest.importorskip("tokenizers")
MARIAN = ("source.spm", "target.spm", "vocab.json")
ENGLISH = ["the cat sat on the mat", "a cat and a dog", "the dog"]
FRENCH = ["le chat est sur le tapis", "un chat et un chien", "le chien"]
COLOURS = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}


def word_level(directory, size=50, end=2, template=False):
    """A tokenizer.json of words w0, w1 and so on behind three special tokens."""
    pieces = ["<unk>", "<s>", *(f"w{i}" for i in range(size - 2))]
    pieces[end] = "</s>"
    model = tokenizers.models.WordLevel({p: i for i, p in enumerate(pieces)}, unk_token="<unk>")
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if template:
        library.post_processor = tokenizers.processors.TemplateProcessing(
            "<s> $A", None, [("<s>", 1)]
        )
    (directory / "tokenizer.json").write_text(library.to_str())
    names = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))


def word_pieces(directory):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(36))]
    (directory / "vocab.txt").write_text("\n".join(words))


def t5(directory):
    """A tokenizer of 32 for the 53 tokens of the weights; padding and start 0, end 1."""
    (directory / "spiece.model").write_bytes(spiece())
    (directory / "tokenizer_config.json").write_text('{"extra_ids": 5}')


def clip(directory):
    pieces = [*"abcdefghijklmn", *(c + "</w>" for c in "abcdefghijklmno")]
    pieces += ["<|startoftext|>", "<|endoftext|>", "ab</w>"]
    (directory / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(pieces)}))
    (directory / "merges.txt").write_text("#version: 0.2\na b</w>\n")


def marian(directory, size=61):
    """Two models and one vocabulary: the end token is 0, padding and start are the last."""
    pieces = {}
    for name, texts in zip(MARIAN, (ENGLISH, FRENCH), strict=False):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts * 4), model_writer=out, vocab_size=24, minloglevel=2,
            hard_vocab_limit=False, model_type="unigram",
        )  # fmt: skip
        (directory / name).write_bytes(out.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
        pieces |= {processor.id_to_piece(i): 0 for i in range(3, len(processor))}
    filler = [f"filler{i}" for i in range(size - 3 - len(pieces))]
    names = ["</s>", "<unk>", *pieces, *filler, "<pad>"]
    (directory / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))


CHANGES = {  # of a run's settings
    "t5": {"decode.max_new_tokens": 6},
    "clip": {"mesh.data": -1, "batch.rows": 8},
}
TOKENIZERS = {"llama": word_level, "t5": t5, "clip": clip, "marian_relu": marian}


def hub(name, path):
    """The directory with a tokenizer beside it, or with how images are read."""
    path = shutil.copytree(DIRECTORIES[name], path)
    if name.startswith("roberta"):
        word_level(path, size=41)
    elif name in TOKENIZERS or pretrained.load(path).kind == "encoder":
        TOKENIZERS.get(name, word_pieces)(path)
    if name in ("clip", "vit_classes"):
        (path / PIXELS).write_text(json.dumps(COLOURS))
    return path


def open_imported(source, workdir, **changes):
    """The model of a directory, and the trainer and parameters of the run that it becomes."""
    model = pretrained.load(source)
    imported.save_to_workdir(model, source, workdir)
    config = ConfigDict(runs.stored_config(workdir))
    config.update_from_flattened_dict(changes)
    return model, *runs.open_run(config, workdir)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Source, run directory, model, trainer and parameters by name; each is imported once."""
    found = {}

    def get(name):
        if name not in found:
            path = tmp_path_factory.mktemp("imported")
            source = hub(name, path / "hub")
            found[name] = (
                source,
                path / "run",
                *open_imported(source, path / "run", **CHANGES.get(name, {})),
            )
        return found[name]

    return get


def refusal(call, *arguments):
    with pytest.raises(LabError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def same_directory(source, target, *files):
    theirs, ours = read_tensors(source), read_tensors(target)
    assert theirs.keys() == ours.keys()
    assert all(theirs[k].dtype == ours[k].dtype for k in theirs)
    assert all(np.array_equal(theirs[k], ours[k]) for k in theirs)
    for name in files:
        assert (target / name).read_bytes() == (source / name).read_bytes()
    first, again = pretrained.load(source), pretrained.load(target)
    for field in ("model_type", "config", "labels"):
        assert getattr(again, field) == getattr(first, field)
    if first.kind != "encoder":  # whose directory need not name the start and the end
        assert again.special == first.special


BESIDE = {
    "llama": ("tokenizer.json", "tokenizer_config.json"),
    "bert_classes": ("vocab.txt",),
    "t5": ("spiece.model", "tokenizer_config.json"),
    "vit_classes": (),
    "dinov2": (),
    "marian_relu": MARIAN,
}


@pytest.mark.each_run("llama")
@pytest.mark.parametrize("name", BESIDE)
def test_the_run_holds_the_model_and_its_export_gives_back_the_directory(name, opened, tmp_path):
    source, workdir, model, trainer, params = opened(name)
    assert trainer.task.model_config == model.config
    assert same_trees(jax.device_get(params), model.params)
    out = tmp_path / "out"
    if name == "marian_relu":
        assert trainer.task.sections["decode"] == model.decode
        done = command("export_hf", f"--workdir={workdir}", f"--target={out}")
        assert done == (0, b"", b"")
        assert pretrained.load(out).decode == model.decode
        names = {"config.json", "generation_config.json", "model.safetensors", *MARIAN}
        assert {path.name for path in out.iterdir()} == names
    else:
        wanted = "t5" if name == "t5" else ""
        assert export_run(model.kind, trainer.task, params, out, wanted) == ""
    same_directory(source, out, *BESIDE[name])
    if name == "vit_classes":
        settings = json.loads((out / PIXELS).read_text())
        assert settings["size"] == {"height": 8, "width": 12}
        assert {key: settings[key] for key in COLOURS} == COLOURS


def test_a_decoder_may_be_exported_as_another_family_that_can_hold_it(opened, tmp_path):
    _, _, model, trainer, params = opened("llama")
    assert trainer.task.sections["decode"] == model.decode
    assert trainer.task.tokenizer.encode("w5 w3 w1 nowhere") == [7, 5, 3, 0]
    export_run("decoder", trainer.task, params, tmp_path / "other", "mistral")
    assert pretrained.load(tmp_path / "other").model_type == "mistral"
    with pytest.raises(LabError, match='"swiglu" has no place in a gpt2 model'):
        export_run("decoder", trainer.task, params, tmp_path / "third", "gpt2")
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize("named_by", ["template", "settings"])
def test_prompts_texts_and_streams_begin_with_the_start_token_of_the_imported_model(
    named_by, tmp_path
):
    source = shutil.copytree(DIRECTORIES["llama"], tmp_path / "hub")
    word_level(source, template=named_by == "template")
    if named_by == "template":  # then nothing else names it
        (source / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
        config = json.loads((source / "config.json").read_text()) | {"bos_token_id": None}
        (source / "config.json").write_text(json.dumps(config))
        (source / "generation_config.json").unlink()
    _, trainer, params = open_imported(source, tmp_path / "run")
    task = trainer.task
    assert task.config.layout == "stream" and task.prompt_ids("w6 w4") == [1, 8, 6]
    # w6 w4 w2 are the ids 8, 6, 4; the reference implementation gives -21.0272 after 1.
    ((nats, tokens),) = task.score_texts(params, ["w6 w4 w2"], trainer.place)
    assert tokens == 3 and nats == pytest.approx(21.0271546, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("distilbert", "sentence_embedding"),
        ("bert_mlm", "masked_language_modeling"),
        ("bert_pretraining", "masked_language_modeling"),
        ("bert_classes", "classification"),
        ("roberta_classes", "classification"),
        ("bert_tokens", "tagging"),
        ("bert_span", "question_answering"),
    ],
)
def test_the_head_names_the_task(name, kind, tmp_path):
    source = hub(name, tmp_path / "hub")
    model = pretrained.load(source)
    tokenizer = read_tokenizer(model, source)
    config = imported.run_config(model, tokenizer)
    assert config.task.kind == kind
    resolved = resolve(config)
    assets = imported.run_assets(model, tokenizer)
    task = runs.build_task(resolved, assets, make_mesh(resolved.run.mesh))
    assert task.model_config == model.config and task.limit == model.config.max_length
    if kind == "classification":
        assert task.config.regression == (model.labels == ("LABEL_0",))


def test_a_run_predicts_with_the_labels_of_the_directory(opened):
    _, _, model, trainer, params = opened("bert_classes")
    (found,) = trainer.task.predict(params, ["w3 w4 w5"], trainer.place)
    inputs = {"input_ids": np.array([[2, 8, 9, 10, 3]])}  # [CLS] w3 w4 w5 [SEP]
    logits, _ = RUNNERS["encoder"].outputs(model.config, model.params, inputs)["logits"]
    chances = np.asarray(jax.nn.softmax(logits[0]))
    assert list(found["probabilities"]) == ["bad", "fair", "good"]
    np.testing.assert_allclose(list(found["probabilities"].values()), chances, atol=1e-5)
    assert found["label"] == ["bad", "fair", "good"][chances.argmax()]


@pytest.mark.slow
def test_a_word_has_one_static_vector_and_another_in_each_line(opened):
    _, _, model, trainer, params = opened("distilbert")
    lines, word = ["w3 w4 w5 w9", "w7 w8 w4 w5"], "w4 w5"
    found, static = trainer.task.embed_word(params, lines, word, trainer.place)
    for line, first, vector in zip(([8, 9, 10, 14], [12, 13, 9, 10]), (2, 3), found, strict=True):
        ids = {"input_ids": np.array([[2, *line, 3]])}  # between [CLS] and [SEP]
        outputs = RUNNERS["encoder"].outputs(model.config, model.params, ids)
        states = np.asarray(outputs["last_hidden_state"][0])
        np.testing.assert_allclose(vector, states[0, first : first + 2].mean(axis=0), atol=1e-5)
    table = model.params["embedding"]["embedding"]
    np.testing.assert_allclose(static, (table[9] + table[10]) / 2, atol=1e-6)
    with pytest.raises(LabError, match="does not stand in this line"):
        trainer.task.embed_word(params, ["w5 w4"], word, trainer.place)


@pytest.mark.slow
def test_a_run_names_images_with_the_labels_of_the_directory(opened, tmp_path):
    _, _, model, trainer, params = opened("vit_classes")
    image = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "image.png")
    (found,) = trainer.task.predict(params, [str(tmp_path / "image.png")], trainer.place)
    mean, std = (np.array(values, np.float32) for values in COLOURS.values())
    normal = jnp.asarray((image / np.float32(255) - mean) / std)[None]
    logits = vision.build(model.config).apply({"params": params}, normal)["logits"]
    assert list(found["probabilities"]) == ["cat", "dog", "owl"]
    chances = np.asarray(jax.nn.softmax(logits[0]))
    np.testing.assert_allclose(list(found["probabilities"].values()), chances, atol=1e-5)


def test_a_model_without_classes_becomes_a_run_that_embeds_images(opened, tmp_path):
    source, workdir, model, trainer, params = opened("dinov2")
    image = np.random.default_rng(0).integers(0, 256, (2, 12, 12, 3), dtype=np.uint8)
    files = [str(tmp_path / f"{i}.png") for i in range(2)]
    for file, pixels in zip(files, image, strict=True):
        Image.fromarray(pixels).save(file)
    mean, std = (np.array(values) for values in imported.IMAGENET.values())
    inputs = {"pixel_values": ((image / 255 - mean) / std).transpose(0, 3, 1, 2)}
    want = np.asarray(RUNNERS["vision"].outputs(model.config, params, inputs)["pooler_output"][0])
    run = open_run(workdir)
    np.testing.assert_allclose(run.encode(files, normalize=False), want, atol=1e-5)
    unit = want / np.linalg.norm(want, axis=1, keepdims=True)
    for words in ([f"--workdir={workdir}", *files], [f"--source=hf:{source}"]):
        target, lines = f"--target={tmp_path / 'found.npy'}", "\n".join(files)
        done = command("embed", *words, target, stdin=lines)
        assert done.returncode == 0, done.stderr
        np.testing.assert_allclose(np.load(tmp_path / "found.npy"), unit, atol=1e-5)
    message = refusal(run.predict, files[0])
    assert message.startswith('a model with model.head = "none" has no classes')
    assert refusal(run.task.examples, "test") == message


@pytest.mark.slow
def test_towers_become_a_run_with_their_own_tokenizer_and_pixels(opened):
    _, _, model, trainer, params = opened("clip")
    tokens = trainer.task.encode_texts(["AB  c"])["tokens"]
    assert tokens.tolist() == [[29, 31, 16, 30, 30, 30, 30, 30, 30]]
    image = np.random.default_rng(0).integers(0, 255, (1, 12, 12, 3), np.uint8)
    scaled = (image / 255 - COLOURS["image_mean"]) / COLOURS["image_std"]
    inputs = {"input_ids": tokens, "pixel_values": scaled.transpose(0, 3, 1, 2)}
    want = RUNNERS["two_towers"].outputs(model.config, model.params, inputs)
    found = trainer.task.text_vectors(params, ["AB  c"], trainer.place)
    np.testing.assert_allclose(found, want["text_embeds"][0], atol=1e-5)
    found = trainer.task.image_vectors(params, image, trainer.place)
    np.testing.assert_allclose(found, want["image_embeds"][0], atol=1e-5)


@pytest.mark.each_run("t5-texts0")
@pytest.mark.parametrize(("name", "texts"), [("t5", LINES), ("marian_relu", ENGLISH)])
def test_a_run_translates_as_the_imported_model_does_without_data(name, texts, opened):
    _, _, model, trainer, params = opened(name)
    task, special = trainer.task, model.special
    decoder = task.decoder(trainer.place, rows=8)
    decoder.shapes = tuple(s for s in decoder.shapes if s.source == 32)  # one compilation
    encoded = [task.encode(text) for text in texts]
    found = [best[0].ids for best in decoder({"params": params}, encoded)]
    rows = [np.pad(ids, (0, 32 - len(ids))).astype(np.int32) for ids in encoded]
    mask = np.arange(32) < np.array([[len(ids)] for ids in encoded])
    inputs = {"input_ids": np.stack(rows), "attention_mask": mask.astype(np.int32)}
    generate = RUNNERS["encoder_decoder"].generate
    tokens, _ = generate(model.config, model.params, inputs, decoder.config, special)
    for row, result in zip(tokens[:, 1:].tolist(), found, strict=True):
        assert result == (row[: row.index(special.eos)] if special.eos in row else row)
    if name == "t5":  # no piece stands in the table's other rows
        assert (task.tokenizer.vocab_size, task.model_config.vocab_size) == (32, 53)
        assert max(map(max, found)) < 32
    lines, long = [], "the cat " * model.config.max_length
    translated = task.translate(decoder, params, [*texts, long], lines.append)
    assert translated == [*([task.tokenizer.decode(ids)] for ids in found), [""]]
    assert len(lines) == 1 and "not translated" in lines[0]
    assert "data" not in vars(task)  # nothing has asked for it


def test_the_checkpoint_is_a_whole_state_of_step_0(opened):
    _, workdir, model, trainer, _ = opened("marian_relu")
    checkpoints = Checkpoints(workdir, 1)
    state = checkpoints.restore(0, trainer.abstract_state)
    checkpoints.close()
    assert int(state.step) == 0 and same_trees(jax.device_get(state.params), model.params)
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert len(moments) == 2 * len(jax.tree.leaves(model.params))
    assert not any(np.any(x) for x in moments)


def test_an_export_overwrites_no_tokenizer_and_an_import_no_run(opened, tmp_path):
    source, workdir, model, trainer, params = opened("marian_relu")
    (tmp_path / "vocab.json").write_text("{}")
    message = refusal(export_run, "encoder_decoder", trainer.task, params, tmp_path)
    assert "holds vocab.json already" in message
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.json"]
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}
    message = refusal(imported.save_to_workdir, model, source, workdir)
    assert message == f"--workdir={workdir} holds a run already: choose another directory"
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*")} == before
    # The directory of the model itself has a config.json, which is not ours.
    assert "holds a run already" in refusal(imported.save_to_workdir, model, source, source)


def test_a_run_of_ours_is_exported_without_its_tokenizer(tmp_path):
    changes = {"model.norm_epsilon": 1e-5, "model.positions": "sinusoidal_halves"}
    trainer = make_trainer(tiny_config(**changes), devices=1)
    params = random_params("marian", trainer.task.model_config)
    note = export_run("encoder_decoder", trainer.task, params, tmp_path / "out")
    assert "the tokenizer was not exported: its kind is word" in note
    again = pretrained.load(tmp_path / "out")
    assert again.config.vocab_size == trainer.task.tokenizer.vocab_size
    assert same_trees(again.params, params)
    assert (again.special.pad, again.special.eos, again.special.start) == (0, 1, 2)
    beams = replace(trainer.task.sections["decode"], beam_size=4)
    trainer.task.sections = trainer.task.sections | {"decode": beams}
    message = refusal(export_run, "encoder_decoder", trainer.task, params, tmp_path / "beams")
    assert message.startswith("decode.length_penalty") and not (tmp_path / "beams").exists()


def test_a_run_that_has_no_place_there_is_one_line(tmp_path):
    task = make_trainer(tiny_config(), devices=1).task
    message = refusal(export_run, "encoder_decoder", task, {}, tmp_path / "out")
    for name in ("marian", "bart", "t5"):
        assert re.search(rf"model.\w+ = \S+ has no place in a {name} model", message)
    message = refusal(export_run, "cnn", task, {}, tmp_path / "out")
    assert message == 'model.kind = "cnn" has no Hugging Face layout here'
    assert not (tmp_path / "out").exists()


def nothing(directory):
    """No tokenizer at all."""


def vocabulary(change):
    """Marian's tokenizer with another vocabulary."""

    def make(directory):
        marian(directory)
        vocab = json.loads((directory / "vocab.json").read_text())
        (directory / "vocab.json").write_text(json.dumps(change(vocab)))

    return make


def many_sentinels(directory):
    t5(directory)
    (directory / "tokenizer_config.json").write_text("{}")


@pytest.mark.parametrize(
    ("name", "make", "named"),
    [
        ("llama", nothing, r"tokenizer.json missing \(or vocab.json and merges.txt\)"),
        ("llama", lambda d: word_level(d, end=3), "eos_token_id = 2, but the tokenizer's is 3"),
        ("llama", lambda d: word_level(d, 98), "embeddings of 97 tokens, but the tokenizer has 98"),
        ("bert", nothing, r"tokenizer.json missing \(or vocab.txt\)"),
        ("t5", nothing, "tokenizer.json missing .or spiece.model"),
        ("t5", many_sentinels, "embeddings of 53 tokens, but the tokenizer has 127"),
        ("marian_relu", lambda d: (d / "source.spm").touch(), "target.spm, vocab.json missing"),
        ("marian_relu", vocabulary(lambda v: v | {"<pad>": 59, "filler0": 60}),
         "pad_token_id = 60, but the tokenizer's is 59"),
        ("marian_relu", vocabulary(lambda v: v | {"</s>": 1, "<unk>": 0}),
         "eos_token_id = 0, but the tokenizer's is 1"),
        ("marian_relu", vocabulary(lambda v: v | {"more": 61}),
         "embeddings of 61 tokens, but the tokenizer has 62"),
        ("marian_relu", vocabulary(lambda v: {"</s>": 0}), "vocab.json lacks the special pieces"),
    ],
)  # fmt: skip
def test_a_missing_or_foreign_tokenizer_is_refused(tmp_path, name, make, named):
    make(tmp_path)
    message = refusal(imported.save_to_workdir, load(name), tmp_path, tmp_path / "run")
    assert message.startswith(f"{tmp_path}: ") and re.search(named, message)
    assert not (tmp_path / "run").exists()


def test_a_missing_tokenizer_is_told_before_the_check(tmp_path):
    flags = f"--source={DIRECTORIES['llama']}", "--check=no.npz", f"--workdir={tmp_path / 'run'}"
    done = command("import_hf", *flags)
    assert done.returncode == 2 and b"tokenizer.json missing" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_tokenizers_end_token_may_be_any_of_the_models(tmp_path):
    source = shutil.copytree(DIRECTORIES["llama"], tmp_path / "hub")
    word_level(source, end=3)
    config = json.loads((source / "generation_config.json").read_text())
    config["eos_token_id"] = [2, 3]
    (source / "generation_config.json").write_text(json.dumps(config))
    model = pretrained.load(source)
    tokenizer = read_tokenizer(model, source)
    assert (tokenizer.eos_id, model.special.eos, model.decode.end_tokens) == (3, 2, (2, 3))


def test_a_byte_level_tokenizer_of_ours_is_written_in_their_layout():
    config = text.TokenizerConfig(kind="byte_bpe", vocab_size=270)
    tokenizer = text.train(config, ["the cat sat on the mat"])
    found = tokenizer_files(tokenizer)
    assert found.keys() == {"tokenizer.json", "tokenizer_config.json"}
    theirs = text.load(found)
    assert theirs.encode("the cat é") == tokenizer.encode("the cat é")
    for name in ("pad_id", "eos_id", "bos_id", "unk_id"):
        assert getattr(theirs, name) == getattr(tokenizer, name)
