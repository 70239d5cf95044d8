"""Tokenizers of Marian's and T5's directories, on models trained here, and sentinels."""

import io
import json

import pytest
import sentencepiece
import tokenizers

from transformer_lab import text
from transformer_lab.errors import LabError
from transformer_lab.text import HfTokenizer, MarianTokenizer, T5Tokenizer, load

ENGLISH = ["the cat sat on the mat", "a cat and a dog"] * 4
FRENCH = ["le chat est sur le tapis", "un chat et un chien"] * 4
LINES = ["the cat sat on the mat", "a dog ran in the big park", "le chat est sur le tapis"]


def model(texts, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=out, model_type="unigram", minloglevel=2,
        hard_vocab_limit=False, **{"vocab_size": 28, **options},
    )  # fmt: skip
    return out.getvalue()


def spiece(**changes):
    """A model with T5's special pieces: padding 0, end 1, unknown 2, no start."""
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} | changes
    return model(LINES * 4, vocab_size=40, **ids)


def library(spm):
    return sentencepiece.SentencePieceProcessor(model_proto=spm)


def marian_files(*languages):
    source, target = model(ENGLISH), model(FRENCH)
    learned = [[m.id_to_piece(i) for i in range(3, len(m))] for m in map(library, (source, target))]
    # As there: the end first, then unknown, the pieces of both languages, the padding last.
    order = dict.fromkeys(["</s>", "<unk>", *languages, *sum(learned, []), "<pad>"])
    return of_marian(source, target, {piece: i for i, piece in enumerate(order)})


def of_marian(source, target, vocab):
    return {"source.spm": source, "target.spm": target, "vocab.json": json.dumps(vocab).encode()}


@pytest.fixture(scope="module")
def files():
    return marian_files(">>fr<<")


@pytest.fixture(scope="module")
def vocab(files):
    return json.loads(files["vocab.json"])


@pytest.fixture(scope="module")
def marian(files):
    return load(files)


def test_marians_ids_come_from_the_vocabulary_and_pieces_from_the_source_model(
    marian, files, vocab
):
    assert isinstance(marian, MarianTokenizer)
    assert (marian.eos_id, marian.unk_id, marian.pad_id) == (0, 1, len(vocab) - 1)
    assert marian.bos_id == marian.pad_id
    assert marian.vocab_size == marian.config.vocab_size == len(vocab)
    pieces = library(files["source.spm"]).encode("the dog sat", out_type=str)
    assert marian.encode("the dog sat") == [vocab[piece] for piece in pieces]
    assert [marian.piece(i) for i in marian.encode("the dog sat")] == pieces
    assert {name: marian.to_files()[name] for name in files} == files
    # A known language code in front is one token.
    assert marian.encode(">>fr<< the cat") == [vocab[">>fr<<"], *marian.encode("the cat")]
    assert vocab[">>fr<<"] not in marian.encode("the >>fr<< cat")
    assert marian.unk_id in marian.encode(">>xx<< the cat")


def test_marian_decodes_an_answer_by_the_target_model(marian, files, vocab):
    pieces = library(files["target.spm"]).encode("un chien sur le tapis", out_type=str)
    ids = [vocab[piece] for piece in pieces]
    answer = [marian.bos_id, *ids, marian.eos_id, ids[0], marian.pad_id]
    assert marian.decode(answer) == "un chien sur le tapis"
    # Pieces of the source alone decode without marks.
    assert marian.decode(marian.encode("the mat and the dog")) == "the mat and the dog"


def test_special_pieces_in_a_text_end_no_sequence():
    # One run of unknown characters is one piece that spells the end.
    spm = model(["xyz zyx"] * 3)
    tokenizer = load(of_marian(spm, spm, {"</s>": 0, "<unk>": 1, "▁": 2, "<pad>": 3}))
    assert tokenizer.encode("</s>") == tokenizer.encode("<pad>") == [2, 1]


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"</s>": 0, "<unk>": 1}, "lacks the special pieces <pad>"),
        (["</s>"], "must map each piece to its id"),
        ({"</s>": 0, "<unk>": "1", "<pad>": 2}, "must map each piece to its id"),
        (None, r"target_vocab\.json are not supported"),
    ],
)
def test_a_bad_vocabulary_is_refused(files, vocabulary, message):
    bad = {"vocab.json": json.dumps(vocabulary).encode()} if vocabulary else None
    with pytest.raises(LabError, match=message):
        load({**files, **(bad or {"target_vocab.json": b"{}"})})
    holes = {"vocab.json": json.dumps({"</s>": 0, "<unk>": 1, "<pad>": 9}).encode()}
    tokenizer = load({**files, **holes})
    assert tokenizer.vocab_size == 10
    with pytest.raises(LabError, match="token id 5 has no piece"):
        tokenizer.decode([5])


# T5.


@pytest.fixture(scope="module")
def t5_files():
    return {"spiece.model": spiece()}


def test_ids_are_the_models_and_sentinels_count_down_from_the_end(t5_files):
    tokenizer, reference = text.load(t5_files), library(t5_files["spiece.model"])
    assert isinstance(tokenizer, T5Tokenizer)
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.bos_id) == (0, 1, 2, 0)
    assert tokenizer.encode_batch(LINES) == [reference.encode(line) for line in LINES]
    assert tokenizer.vocab_size == len(reference) + 100
    assert tokenizer.sentinels[0] == tokenizer.vocab_size - 1
    assert tokenizer.sentinels[99] == len(reference)
    assert tokenizer.piece(tokenizer.vocab_size - 3) == "<extra_id_2>"
    ids = [0, tokenizer.sentinels[0], *reference.encode("the cat"), tokenizer.sentinels[1], 1, 9]
    assert tokenizer.decode(ids) == "<extra_id_0> the cat <extra_id_1>"


def test_the_settings_beside_it_say_how_many_sentinels(t5_files):
    files = t5_files | {"tokenizer_config.json": b'{"extra_ids": 3}'}
    assert len(text.load(files).sentinels) == len(text.load(text.load(files).to_files()).sentinels)
    assert len(text.load(files).sentinels) == 3
    with pytest.raises(LabError, match="extra_ids"):
        text.load(files | {"tokenizer_config.json": b'{"extra_ids": "x"}'})
    with pytest.raises(LabError, match="lacks a padding"):
        text.load({"spiece.model": spiece(pad_id=-1)})


def test_a_tokenizer_json_of_t5_or_bart_says_what_starts_a_text_and_a_decoder():
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("a", -3.0)]
    pieces += [("<extra_id_1>", 0.0), ("<extra_id_0>", 0.0)]
    found = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    found.add_special_tokens([piece for piece, _ in pieces if piece[0] == "<"])
    files = {
        "tokenizer.json": found.to_str().encode(),
        "config.json": json.dumps({"decoder_start_token_id": 0}).encode(),
    }
    tokenizer = text.load(files)
    assert isinstance(tokenizer, HfTokenizer)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.start_ids) == (0, 1, ())
    assert tokenizer.sentinels == [6, 5] and tokenizer.vocab_size == 7
    template = tokenizers.processors.TemplateProcessing(
        "<pad> $A </s>", None, [("<pad>", 0), ("</s>", 1)]
    )
    found.post_processor = template
    start = text.load(files | {"tokenizer.json": found.to_str().encode()}).start_ids
    assert start == (0,)
