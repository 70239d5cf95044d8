"""The tokenizer of a Hugging Face Marian directory, on models trained here."""

import io
import json

import pytest
import sentencepiece

from transformer_lab.errors import LabError
from transformer_lab.text import MarianTokenizer, load, load_dir, save_dir

ENGLISH = ["the cat sat on the mat", "a cat and a dog"] * 4
FRENCH = ["le chat est sur le tapis", "un chat et un chien"] * 4


def model(texts):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=out, vocab_size=28, model_type="unigram",
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return out.getvalue()


def learned(spm):
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm)
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


@pytest.fixture(scope="module")
def files():
    source, target = model(ENGLISH), model(FRENCH)
    # As there: the end first, then unknown, the pieces of both languages, the padding last.
    order = dict.fromkeys(["</s>", "<unk>", ">>fr<<", *learned(source), *learned(target), "<pad>"])
    vocab = {piece: i for i, piece in enumerate(order)}
    return {"source.spm": source, "target.spm": target, "vocab.json": json.dumps(vocab).encode()}


@pytest.fixture(scope="module")
def vocab(files):
    return json.loads(files["vocab.json"])


@pytest.fixture(scope="module")
def tokenizer(files):
    return load(files)


def test_special_ids_come_from_the_vocabulary(tokenizer, vocab):
    assert isinstance(tokenizer, MarianTokenizer)
    assert (tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id) == (0, 1, len(vocab) - 1)
    assert tokenizer.bos_id == tokenizer.pad_id
    assert tokenizer.vocab_size == tokenizer.config.vocab_size == len(vocab)


def test_pieces_of_the_source_model_get_the_ids_of_the_vocabulary(tokenizer, files, vocab):
    source = sentencepiece.SentencePieceProcessor(model_proto=files["source.spm"])
    pieces = source.encode("the dog sat", out_type=str)
    assert tokenizer.encode("the dog sat") == [vocab[piece] for piece in pieces]
    assert [tokenizer.piece(i) for i in tokenizer.encode("the dog sat")] == pieces
    assert tokenizer.encode_batch(["the dog sat", "", "a"]) == [
        tokenizer.encode(text) for text in ("the dog sat", "", "a")
    ]
    assert tokenizer.encode_batch([]) == []


def test_an_answer_is_decoded_by_the_target_model(tokenizer, files, vocab):
    target = sentencepiece.SentencePieceProcessor(model_proto=files["target.spm"])
    ids = [vocab[piece] for piece in target.encode("un chien sur le tapis", out_type=str)]
    answer = [tokenizer.bos_id, *ids, tokenizer.eos_id, ids[0], tokenizer.pad_id]
    assert tokenizer.decode(answer) == "un chien sur le tapis"


def test_pieces_of_the_source_alone_decode_without_marks(tokenizer):
    assert tokenizer.decode(tokenizer.encode("the mat and the dog")) == "the mat and the dog"


def test_a_known_language_code_is_one_token(tokenizer, vocab):
    assert tokenizer.encode(">>fr<< the cat") == [vocab[">>fr<<"], *tokenizer.encode("the cat")]
    assert vocab[">>fr<<"] not in tokenizer.encode("the >>fr<< cat")
    assert tokenizer.unk_id in tokenizer.encode(">>xx<< the cat")


def test_special_pieces_in_the_text_end_no_sequence(files):
    # One run of unknown characters is one piece that spells the end.
    vocab = {piece: i for i, piece in enumerate(["</s>", "<unk>", "▁", "<pad>"])}
    spm = model(["xyz zyx"] * 3)
    files = {"source.spm": spm, "target.spm": spm, "vocab.json": json.dumps(vocab).encode()}
    assert load(files).encode("</s>") == [2, 1]
    assert load(files).encode("<pad>") == [2, 1]


@pytest.mark.parametrize(
    "text", ["", "\0", "a\ud800", "👨\u200d👩", "\r\n", "\ufeff", ">><<", "\u0301"]
)
def test_no_text_crashes(tokenizer, text):
    ids = tokenizer.encode(text)
    assert not {tokenizer.eos_id, tokenizer.pad_id}.intersection(ids)
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_a_directory_and_its_copy_are_the_same_tokenizer(files, tokenizer, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    original = load_dir(tmp_path)
    save_dir(original, tmp_path / "copy")
    copy = load_dir(tmp_path / "copy")
    assert copy.fingerprint() == original.fingerprint() == tokenizer.fingerprint()
    assert copy.encode_batch(ENGLISH) == tokenizer.encode_batch(ENGLISH)
    assert {n: copy.to_files()[n] for n in files} == files


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"</s>": 0, "<unk>": 1}, "lacks the special pieces <pad>"),
        (["</s>"], "must map each piece to its id"),
        ({"</s>": 0, "<unk>": "1", "<pad>": 2}, "must map each piece to its id"),
    ],
)
def test_a_bad_vocabulary_is_refused(files, vocabulary, message):
    with pytest.raises(LabError, match=message):
        load({**files, "vocab.json": json.dumps(vocabulary).encode()})


def test_an_id_in_a_gap_of_the_vocabulary_is_refused(files):
    vocab = {"</s>": 0, "<unk>": 1, "<pad>": 9}
    tokenizer = load({**files, "vocab.json": json.dumps(vocab).encode()})
    assert tokenizer.vocab_size == 10
    with pytest.raises(LabError, match="token id 5 has no piece"):
        tokenizer.decode([5])


def test_two_vocabularies_are_refused(files):
    with pytest.raises(LabError, match=r"target_vocab\.json are not supported"):
        load({**files, "target_vocab.json": b"{}"})
