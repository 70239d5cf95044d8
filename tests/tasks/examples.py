"""A config for each task on data of a few words or pixels, for the tests of what tasks share."""

import json
from pathlib import Path

import numpy as np
import soundfile
from ml_collections import ConfigDict
from PIL import Image

from tests import tiny
from tests.tiny_described import towers_config as three_towers_config
from tests.tiny_described import write_described
from tests.tiny_emoji import towers_config, write_emoji
from transformer_lab.training.config import default_config

SPLITS = ("train", "validation", "test")
MODEL = {
    "model.layers": 1, "model.width": 8, "model.heads": 2, "model.head_dim": 4,
    "model.feed_forward_width": 12,
}  # fmt: skip
TEXT = {"model.max_length": 16, "tokenizer.kind": "word"}
BATCH = {
    "batch.tokens_per_batch": 16, "batch.rows_multiple": 2, "batch.buckets": 1,
    "batch.max_length": 6,
}  # fmt: skip
# Of each task: the kind of its files, and what stands in those of train, validation and test.
DATA = {
    "translation": ("tsv", "a b\tb a\nc d\td c", "b c\tc b", "a c d\td c a\nd\td"),
    "documents": ("txt", "the cat sat .\n\na dog ran .", "a cat ran .", "the dog sat .\n\na cat ."),
    "masked_language_modeling": (
        "txt", "a cat sat . it ran .\n\na dog ran . it sat .", "a cat .\n\na dog . it ran .",
        "it . a cat .\n\na dog sat . it ran .",
    ),
    "classification": (
        "csv", "text,label\ngood,yes\nbad film,no", "text,label\nfilm,no\nfilm good,yes",
        "text,label\ngood film,yes\nbad bad,no",
    ),
    "tagging": (
        "conll", "ann B-PER\nran O\n\nben B-PER", "ran O\n\nran O\nben B-PER",
        "ben B-PER\nann B-PER\n\nann B-PER",
    ),
    "dependency_parsing": (
        "conllu", "ran 0 root\nann 1 nsubj\n\nben 2 nsubj\nran 0 root",
        "ann 0 root\n\nben 3 nsubj\nann 3 nsubj\nran 0 root",
        "ann 2 nsubj\nran 0 root\n\nran 0 root",
    ),
    "question_answering": ("json", "abc", "def", "no"),
    "sentence_embedding": (
        "csv", "text,pair\nred ball,ball\nblue box,box", "text,pair\nball,red\nbox,blue",
        "text,pair\nbox box,blue box\nred,ball",
    ),
}  # fmt: skip


def squad(names: str) -> str:
    """In SQuAD's format, "who ran" of "x ran" for each name x, which only the first x answers."""
    rows = [
        {"context": f"{x} ran", "qas": [{"id": x, "question": "who ran", "answers":
            [{"text": x, "answer_start": 0}] if x == names[0] else []}]}
        for x in names
    ]  # fmt: skip
    return json.dumps({"data": [{"paragraphs": rows}]})


def conllu(text: str) -> str:
    """Lines of a word, its head and its relation, and empty lines, as CoNLL-U."""
    sentences = [[line.split() for line in block.split("\n")] for block in text.split("\n\n")]
    rows = [
        [f"{i}\t{word}" + "\t_" * 4 + f"\t{head}\t{label}\t_\t_" for i, (word, head, label) in
            enumerate(sentence, 1)]
        for sentence in sentences
    ]  # fmt: skip
    return "\n\n".join(map("\n".join, rows)) + "\n"


def files(folder: Path, name: str, changed: bool) -> dict[str, str]:
    """A file for each split, as a config reads them; `changed` swaps two splits."""
    kind, train, validation, test = DATA[name]
    texts = (validation, train, test) if changed else (train, validation, test)
    for split, text in zip(SPLITS, texts, strict=True):
        content = {"json": squad, "conllu": conllu}.get(kind, str)(text)
        (folder / f"{split}.{kind}").write_text(content, "utf-8")
    return {"data.source": "files", "data.path": str(folder)}


def images(folder: Path, changed: bool) -> dict[str, str]:
    """Grey images of 2 x 2 pixels, one of each of two classes in each split."""
    for split in SPLITS:
        for k, name in enumerate("ab"):
            path = folder / split / name
            path.mkdir(parents=True, exist_ok=True)
            pixels = np.array([[0, 80 + 80 * changed], [160, 240 * k]], np.uint8)
            Image.fromarray(pixels).save(path / f"{int(changed)}.png")
    return {"data.source": "folders", "data.path": str(folder)}


def recordings(folder: Path, changed: bool, samples: int = 40) -> dict[str, str]:
    """Silent recordings with their texts, in a table of each split."""
    texts = {"train": ["a b", "c d"], "validation": ["b c"], "test": ["d"]}
    if changed:
        texts |= {"validation": ["c b"]}
    for split, lines in texts.items():
        rows = [f"{split}{i}.wav,{line}" for i, line in enumerate(lines)]
        for row in rows:
            soundfile.write(folder / row.partition(",")[0], np.zeros(samples), 16_000)
        (folder / f"{split}.csv").write_text("\n".join(["audio,text", *rows]), "utf-8")
    return {"data.source": "files", "data.path": str(folder)}


def searches(folder: Path, changed: bool) -> dict[str, str]:
    """Three documents and a query of each split, in BEIR's format."""
    documents = {"b": "a ball", "c": "a cup", "d": "a drum"}
    queries = {"train": "red", "validation": "tea", "test": "red tea"}
    fits = {"train": "b", "validation": "c", "test": "d" if changed else "b"}
    (folder / "qrels").mkdir()
    for name, texts in (("corpus", documents), ("queries", queries)):
        rows = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    for split, name in fits.items():
        (folder / "qrels" / f"{split}.tsv").write_text(
            f"query-id\tcorpus-id\tscore\n{split}\t{name}\t1"
        )
    return {"data.source": "files", "data.path": str(folder)}


def boxes(folder: Path, changed: bool) -> dict[str, str]:
    """Images of 2 x 2 and 2 x 1 pixels in COCO's format, with an object of one of two classes."""
    for split in SPLITS:
        content = {"images": [], "annotations": [],
                   "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]}  # fmt: skip
        for k, width in enumerate((2, 1)):
            name, pixels = f"{split}{k}.png", np.zeros((2, width, 3), np.uint8)
            pixels[0, -1] = 200
            Image.fromarray(pixels).save(folder / name)
            sizes = {"height": 2, "width": width}
            content["images"].append({"id": k, "file_name": name, **sizes})
            box = [width - 1, 0, 1, 1 + int(changed and split == "test")]
            row = {"id": k, "image_id": k, "category_id": (3, 7)[k], "bbox": box}
            content["annotations"].append(row)
        (folder / f"{split}.json").write_text(json.dumps(content), "utf-8")
    return {"data.source": "coco", "data.path": str(folder)}


def series(folder: Path, changed: bool) -> dict[str, str]:
    """Two series of yearly values in a table, of which the second begins later."""
    rows = ["2000,,3", "2001,1,4", f"2002,2,{5 + changed}", "2003,4,5"]
    (folder / "series.csv").write_text("\n".join(["date,a,b", *rows]), "utf-8")
    return {"data.source": "files", "data.path": str(folder / "series.csv")}


FINDS = {"model.decoder_layers": 2, "model.decoder_heads": 2, "model.queries": 3,
         "model.decoder_feed_forward_width": 12, "model.backbone.stages": (1,),
         "model.backbone.width": 4, "model.backbone.stem": "small", "data.shortest": 2,
         "data.longest": 2, "batch.rows": 2, "batch.objects": 2}  # fmt: skip
SPEECH = {"model.frames": 2, "model.bins": 1, "batch.rows": 2, "batch.length": 5}
FRAMES = {"model.bins": 1, "model.channels": 2}
IMAGES = {"model.patch_size": (1, 1), "model.pooling": "mean", "batch.rows": 2,
          "model.image_size": (2, 2), "data.channels": 1}  # fmt: skip
MAKES = {"model.image_size": (2, 2), "model.channels": 1, "model.patch_size": (1, 1),
         "model.max_length": 2, "tokenizer.kind": "word", "batch.rows": 2}  # fmt: skip
PREDICTS = {key: MAKES[key] for key in MAKES if "size" in key or "chan" in key} | {
    "batch.rows": 2, "model.codes": 3}  # fmt: skip
CODES = {f"model.{part}.{key[6:]}": value for key, value in MODEL.items()
         for part in ("image", "text")}  # fmt: skip
CODES |= {key.replace("model.", "model.image."): PREDICTS[key] for key in PREDICTS}
CODES |= {"model.text.max_length": 6, "tokenizer.kind": "word"}
LANGUAGE = {"batch.rows": 2, "batch.length": 5, "task.samples": 0}
GREY = {"model.max_length": 8, "task.shrink": 1, "task.levels": 4}
PIECES = {"tokenizer.kind": "wordpiece"}
COUPLES = {"data.label_column": "", "data.pair_column": "pair", "task.pooling": "max"}
STEPS = {"model.context": 1, "model.patch": 1, "model.horizon": 1, "batch.rows": 2}
WINDOWS = {"model.width": 4, "tokenizer.kind": "word", "batch.rows": 2, "windows.window": 1,
           "windows.negatives": 2, "windows.subsample": 0.0}  # fmt: skip
SYMBOLS = {"data.min_length": 4, "data.max_length": 6, "data.train_size": 4, "data.test_size": 2,
           "data.validation_size": 2, "data.other_lengths": (), "tokenizer.kind": "char",
           "batch.max_length": 8}  # fmt: skip
RECALL = {"data.length": 6, "data.pairs": 1, "data.vocabulary": 8, "data.train_size": 20,
          "data.validation_size": 3, "data.test_size": 2, "batch.rows": 2,
          "model.max_length": 8}  # fmt: skip
MIXTURE = {"data.tasks": ("translate",), "data.pairs_source": "reverse", "data.held_out": 2,
           "batch.max_length": 16, "batch.tokens_per_batch": 64}  # fmt: skip

PICTURES = ("diffusion", "image_prediction", "picture_codes")  # tasks that make images

# Of each task: the kind of its model, the name of its data in `DATA`, and its other settings.
TASKS = {
    "translation": ("encoder_decoder", BATCH, TEXT),
    "text_to_text": ("encoder_decoder", BATCH, TEXT, MIXTURE),
    "language_modeling": ("decoder", TEXT, LANGUAGE),
    "image_modeling": ("decoder", LANGUAGE, GREY),
    "masked_language_modeling": ("encoder", TEXT, PIECES, {"batch.rows": 2, "batch.length": 8}),
    "classification": ("encoder", BATCH, TEXT),
    "parentheses": ("encoder", BATCH, TEXT, SYMBOLS),
    "sequence_targets": ("decoder", RECALL),
    "tagging": ("encoder", BATCH, TEXT),
    "dependency_parsing": ("encoder", BATCH, TEXT),
    "question_answering": ("encoder", BATCH, TEXT, PIECES, {"batch.max_length": 8}),
    "sentence_embedding": ("encoder", BATCH, TEXT, COUPLES),
    "retrieval": ("encoder", BATCH, TEXT, {"task.hard": 2, "batch.tokens_per_batch": 24}),
    "image_classification": ("vision", IMAGES),
    "transcription": ("whisper", TEXT, SPEECH),
    "detection": ("detr", FINDS),
    "diffusion": ("dit", MAKES),
    "image_prediction": ("vqvae", PREDICTS),
    "picture_codes": ("picture_codes", CODES),
    "ctc": ("conformer", BATCH, TEXT, FRAMES),
    "word_vectors": ("word_vectors", WINDOWS),
    "forecasting": ("patch_forecaster", STEPS),
}


def config_of(task: str, folder: Path, changed: bool = False) -> ConfigDict:
    """The task's config; `changed` with other data of the same form."""
    if task == "contrastive":
        small = {"batch__rows": 2, "batch__length": 6, "model__image__image_size": (1, 1)}
        changes = {
            "data__test_share": 0.25 if changed else 0.125,
            "model__image__patch_size": (1, 1),
        }
        return towers_config(write_emoji(folder), data__validation_share=0.125, **small, **changes)
    if task == "contrastive_sound":
        small = {
            "batch__rows": 2, "batch__length": 6, "data__test_share": 0.2,
            "data__validation_share": 0.2, "data__languages": ("fr",),
            "model__image__image_size": (1, 1), "model__image__patch_size": (1, 1),
            "model__sound__image_size": (3, 2), "model__sound__patch_size": (1, 2),
            "data__split_seed": int(changed),
        }  # fmt: skip
        return three_towers_config(write_described(folder, 0), **small)
    kind, *settings = TASKS[task]
    values = {} if kind in ("word_vectors", "picture_codes") else dict(MODEL)
    if task in ("parentheses", "text_to_text", "sequence_targets"):
        config = default_config(model=kind, task=task)
        values |= {"data.split_seed" if "split_seed" in config.data else "data.seed": int(changed)}
    elif task.startswith("image") or task in PICTURES:
        values |= images(folder, changed)
    elif task == "detection":
        values |= boxes(folder, changed)
    elif task == "retrieval":
        values |= searches(folder, changed)
    elif task == "forecasting":
        values |= series(folder, changed)
    elif task in ("transcription", "ctc"):
        values |= recordings(folder, changed, 40 if task == "transcription" else 800)
    else:
        values |= files(folder, task if task in DATA else "documents", changed)
    return tiny.config_of(kind, task, values, *settings)
