"""T5's tokenizer files, and sentinels of our own tokenizers."""

import io
import json

import pytest
import sentencepiece

from transformer_lab import text
from transformer_lab.errors import LabError
from transformer_lab.text import HfTokenizer, T5Tokenizer, TokenizerConfig

LINES = ["the cat sat on the mat", "a dog ran in the big park", "le chat est sur le tapis"]


def spiece(**changes):
    """A model with T5's special pieces: padding 0, end 1, unknown 2, no start."""
    out = io.BytesIO()
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} | changes
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 4), model_writer=out, vocab_size=40, minloglevel=2,
        hard_vocab_limit=False, model_type="unigram", **ids,
    )  # fmt: skip
    return out.getvalue()


@pytest.fixture(scope="module")
def model():
    return spiece()


def test_ids_are_the_models_and_sentinels_count_down_from_the_end(model):
    tokenizer = text.load({"spiece.model": model})
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert isinstance(tokenizer, T5Tokenizer)
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.bos_id) == (0, 1, 2, 0)
    assert tokenizer.encode_batch(LINES) == [library.encode(line) for line in LINES]
    assert tokenizer.vocab_size == len(library) + 100
    assert tokenizer.sentinels[0] == tokenizer.vocab_size - 1
    assert tokenizer.sentinels[99] == len(library)
    assert tokenizer.piece(tokenizer.vocab_size - 3) == "<extra_id_2>"
    ids = [0, tokenizer.sentinels[0], *library.encode("the cat"), tokenizer.sentinels[1], 1, 9]
    assert tokenizer.decode(ids) == "<extra_id_0> the cat <extra_id_1>"
    again = text.load(tokenizer.to_files())
    assert again.fingerprint() == tokenizer.fingerprint() and again.sentinels == tokenizer.sentinels


def test_the_settings_beside_it_say_how_many_sentinels(model):
    files = {"spiece.model": model, "tokenizer_config.json": b'{"extra_ids": 3}'}
    assert len(text.load(files).sentinels) == len(text.load(text.load(files).to_files()).sentinels)
    assert len(text.load(files).sentinels) == 3
    with pytest.raises(LabError, match="extra_ids"):
        text.load(files | {"tokenizer_config.json": b'{"extra_ids": "x"}'})
    with pytest.raises(LabError, match="lacks a padding"):
        text.load({"spiece.model": spiece(pad_id=-1)})


def test_a_tokenizer_json_of_t5_or_bart_says_what_starts_a_text_and_a_decoder():
    tokenizers = pytest.importorskip("tokenizers")
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("a", -3.0)]
    pieces += [("<extra_id_1>", 0.0), ("<extra_id_0>", 0.0)]
    library = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    library.add_special_tokens([piece for piece, _ in pieces if piece[0] == "<"])
    files = {
        "tokenizer.json": library.to_str().encode(),
        "config.json": json.dumps({"decoder_start_token_id": 0}).encode(),
    }
    tokenizer = text.load(files)
    assert isinstance(tokenizer, HfTokenizer)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.start_ids) == (0, 1, ())
    assert tokenizer.sentinels == [6, 5] and tokenizer.vocab_size == 7
    template = tokenizers.processors.TemplateProcessing(
        "<pad> $A </s>", None, [("<pad>", 0), ("</s>", 1)]
    )
    library.post_processor = template
    start = text.load(files | {"tokenizer.json": library.to_str().encode()}).start_ids
    assert start == (0,)


@pytest.mark.parametrize(
    "kind", ["bpe", "unigram", "byte_bpe", "plain_bpe", "word", "byte", "char"]
)
def test_extra_ids_of_our_own_tokenizers_stand_after_their_pieces(kind):
    size = 300
    plain = text.train(TokenizerConfig(kind=kind, vocab_size=size), LINES)
    config = TokenizerConfig(kind=kind, vocab_size=size, extra_ids=4)
    tokenizer = text.train(config, LINES)
    assert tokenizer.vocab_size == plain.vocab_size + 4
    assert tokenizer.sentinels == [plain.vocab_size + i for i in (3, 2, 1, 0)]
    assert set(tokenizer.sentinels) <= tokenizer.special_ids
    for line in [*LINES, "<extra_id_0>"]:
        assert tokenizer.encode(line) == plain.encode(line)
    ids = [*tokenizer.encode("the cat"), tokenizer.sentinels[2]]
    assert tokenizer.decode(ids) == f"{plain.decode(ids[:-1])} <extra_id_2>"
    again = text.load(tokenizer.to_files())
    assert again.sentinels == tokenizer.sentinels
    with pytest.raises(LabError, match="extra_ids = -1"):
        TokenizerConfig(kind=kind, vocab_size=size, extra_ids=-1)
