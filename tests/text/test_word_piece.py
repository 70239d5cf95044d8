"""BERT's WordPiece: trained here, and read from its own files."""

import json
from itertools import chain

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from tests.text.test_byte_bpe import gpt2
from transformer_lab.errors import LabError
from transformer_lab.text import TokenizerConfig, load, train

TEXTS = ["The cat sat on the mat, the cat", "unaffable affable naïve Café!", "a b c 中文 x-y"] * 3
# The places of BERT's files: other ids than ours, and unused ones between.
BERT = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def bert(*pieces, **settings):
    """BERT's files: vocab.txt, and tokenizer_config.json if there are settings."""
    config = {"tokenizer_config.json": json.dumps(settings).encode()} if settings else {}
    return {"vocab.txt": "".join(f"{p}\n" for p in (*BERT, *pieces)).encode(), **config}


# Hard texts, and the pieces that the reference implementation gives, uncased and cased, where the
# vocabulary has these characters alone and as "##x".
LETTERS = "abceisßéσςﬁ٣中文한’…-\u0301"
HARD = [
    ("it’s a-b…c", "[UNK] ’ s a - b … c", "[UNK] ’ s a - b … c"),
    ("\u0130sis ISI", "i ##s ##i ##s i ##s ##i", "[UNK] [UNK]"),
    ("\u1e9e Σσ", "ß σ ##σ", "[UNK] [UNK]"),
    ("ﬁbci", "ﬁ ##b ##c ##i", "ﬁ ##b ##c ##i"),
    ("中a文", "中 a 文", "中 a 文"),
    ("한ab", "[UNK]", "한 ##a ##b"),  # without accents Hangul falls into its letters
    ("a\u0301e\u0301", "a ##e", "a ##\u0301 ##e ##\u0301"),
    ("a\u00adb\u200dc \ufeffab", "a ##b ##c a ##b", "a ##b ##c a ##b"),
    ("a\u2028b\u0085c\u00a0e", "a b ##c e", "a b ##c e"),
    ("٣ab \ue000a x²", "٣ ##a ##b a [UNK]", "٣ ##a ##b a [UNK]"),
]


def pieces(tokenizer, text):
    return [tokenizer.piece(i) for i in tokenizer.encode(text)]


@pytest.fixture(scope="module")
def trained():
    return train(TokenizerConfig(kind="wordpiece", vocab_size=80), TEXTS)


def test_case_60_100_characters_are_100_pieces_and_101_are_unknown():
    tokenizer = load(bert("a", "##a"))
    assert tokenizer.encode("a" * 100) == [6] + [7] * 99
    assert tokenizer.encode("a" * 101) == [tokenizer.unk_id]
    grown = train(TokenizerConfig(kind="wordpiece", vocab_size=7), ["a aa"])
    assert [len(grown.encode("a" * n)) for n in (100, 101)] == [100, 1]


def test_case_60_composed_and_decomposed_letters_are_the_same_uncased_word():
    uncased, cased = (load(bert("e", "é", "É", do_lower_case=low)) for low in (True, False))
    composed, decomposed = "\u00e9", "e\u0301"
    assert uncased.encode(f"{composed} {decomposed} \u00c9 E\u0301 e") == [6] * 5
    assert cased.encode(f"{composed} {decomposed} \u00c9") == [7, 2, 8]


def test_case_60_nul_and_zero_width_space_vanish_and_the_halves_join(trained):
    for text in ("af\0fable", "af\u200bfable", "aff\ufffdable", "aff\x07able"):
        assert trained.encode(text) == trained.encode("affable")
    assert trained.encode("\0 \u200b") == []
    assert trained.encode("on\u00a0the\u3000mat") == trained.encode("on the mat")


@pytest.mark.parametrize(("text", "uncased", "cased"), HARD)
def test_hard_texts_have_the_pieces_of_the_reference(text, uncased, cased):
    for lowercase, expected in ((True, uncased), (False, cased)):
        files = bert(*LETTERS, *(f"##{c}" for c in LETTERS), do_lower_case=lowercase)
        assert " ".join(pieces(load(files), text)) == expected


def test_trained_special_ids_are_the_houses(trained):
    ids = (trained.pad_id, trained.eos_id, trained.bos_id, trained.unk_id, trained.mask_id)
    assert ids == (0, 1, 2, 3, 4) and trained.special_ids == {0, 1, 2, 3, 4}
    assert [trained.piece(i) for i in ids] == ["[PAD]", "[SEP]", "[CLS]", "[UNK]", "[MASK]"]
    assert train(TokenizerConfig(kind="byte"), []).special_ids == {0, 1, 2, 3}
    # Their names in a text are plain text.
    assert pieces(trained, "[MASK]") == ["[UNK]", *pieces(trained, "mask"), "[UNK]"]
    tokenizer = load(bert("[", "]", "mask", "cls", "m", "##ask"))
    assert pieces(tokenizer, "[MASK][CLS]") == ["[", "mask", "]", "[", "cls", "]"]


def test_training_merges_the_most_frequent_after_specials_and_characters(trained):
    every = [trained.piece(i) for i in range(trained.vocab_size)]
    assert len(set(every)) == len(every) <= 80
    assert pieces(trained, "The CAT affable") == ["the", "cat", "affable"]
    assert trained.decode(trained.encode("the cat, affable!")) == "the cat, affable!"
    # Chinese characters are words; accents and case are gone, and no case is lost where it counts.
    assert pieces(trained, "中文naïve") == ["中", "文", *pieces(trained, "naive")]
    cased = train(TokenizerConfig(kind="wordpiece", vocab_size=100, lowercase=False), TEXTS)
    assert pieces(cased, "The the Café") == ["The", "the", *pieces(cased, "Café")]
    assert not cased.config.lowercase and cased.decode(cased.encode("The Café")) == "The Café"


def test_berts_files_keep_their_ids():
    files = bert("the", "cat", "##s", do_lower_case=True)
    tokenizer = load(files)
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    assert ids == (0, 2, 3, 4) and tokenizer.mask_id == 5 and tokenizer.vocab_size == 9
    assert tokenizer.encode("The cats.") == [6, 7, 8, 2]
    assert tokenizer.special_ids == {0, 2, 3, 4, 5}
    names = {"cls_token": "<s>", "sep_token": {"content": "</s>"}, "pad_token": "<pad>"}
    other = load(bert("<s>", "</s>", "<pad>", "<mask>", "a", mask_token="<mask>", **names))
    assert (other.bos_id, other.eos_id, other.pad_id, other.mask_id) == (6, 7, 8, 9)


@pytest.mark.parametrize(
    ("settings", "ids"),
    [  # of "É 中文"; the vocabulary has e, é, É, 中, 文, ##文
        ({"do_lower_case": True}, [6, 9, 10]),
        ({"do_lower_case": False}, [8, 9, 10]),
        ({}, [8, 9, 10]),  # a piece has a capital
        ({"do_lower_case": True, "strip_accents": False}, [7, 9, 10]),
        ({"do_lower_case": False, "strip_accents": True}, [2, 9, 10]),
        ({"do_lower_case": True, "tokenize_chinese_chars": False}, [6, 9, 11]),
    ],
)
def test_a_vocab_txt_obeys_the_settings_beside_it(settings, ids):
    tokenizer = load(bert(*"eéÉ中文", "##文", **settings))
    assert tokenizer.encode("É 中文") == ids
    assert load(tokenizer.to_files()).encode("É 中文") == ids


def test_a_vocab_txt_without_settings_and_with_other_files_beside_it():
    assert load(bert("e", "é")).config.lowercase and load(bert("e", "é")).encode("É") == [6]
    assert not load(bert("e", "E")).config.lowercase  # a capital
    byte_bpe = train(TokenizerConfig(kind="byte_bpe", vocab_size=280), TEXTS)
    assert load({**gpt2(byte_bpe), **bert()}).config.kind == "hf"  # as its tokenizer.json says
    files = bert()
    size = load(files).vocab_size
    beside = {"added_tokens.json": json.dumps({"[USER]": size, "[PAD]": 0}).encode()}
    tokenizer = load(files | beside)
    assert tokenizer.vocab_size == size + 1
    # Text and added tokens are both lowercase here, as in the reference.
    assert tokenizer.encode("[user] the [USER]") == [size, *load(files).encode("the"), size]


def test_a_word_piece_tokenizer_json_goes_before_vocab_txt_and_may_be_old():
    vocab = {piece: i for i, piece in enumerate([*BERT, "cat", "##s", "Cat"])}
    library = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=False)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.enable_truncation(2)
    library.enable_padding()
    new = json.loads(library.to_str())
    old = {**new, "model": {k: v for k, v in new["model"].items() if k != "type"}}
    for values in (new, old):
        files = {**bert("nothing"), "tokenizer.json": json.dumps(values).encode()}
        tokenizer = load(files)
        assert tokenizer.encode("Cats cats cats") == [8, 7, 6, 7, 6, 7]
        assert (tokenizer.config.kind, tokenizer.config.lowercase) == ("wordpiece", False)
        assert tokenizer.special_ids == {0, 2, 3, 4, 5}


@pytest.mark.parametrize("in_json", [True, False])
@pytest.mark.parametrize(
    ("settings", "ids"),
    [  # of "Cat É 中文", as Hugging Face's library (5.24) has them, whatever tokenizer.json says
        ({"do_lower_case": True}, [6, 8, 11, 12]),
        ({"do_lower_case": False}, [7, 10, 11, 12]),
        ({"do_lower_case": True, "strip_accents": False}, [6, 9, 11, 12]),
        ({"do_lower_case": False, "tokenize_chinese_chars": False}, [7, 10, 11, 13]),
    ],
)
def test_settings_that_conflict_with_tokenizer_json_win(in_json, settings, ids):
    vocab = {piece: i for i, piece in enumerate([*BERT, "cat", "Cat", *"eéÉ中文", "##文"])}
    library = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=in_json)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    files = {"tokenizer.json": library.to_str().encode()}
    say = lambda **values: {"tokenizer_config.json": json.dumps(values).encode()}  # noqa: E731
    tokenizer = load({**files, **say(**settings)})
    assert tokenizer.encode("Cat É 中文") == ids
    assert tokenizer.config.lowercase == settings["do_lower_case"]
    assert load(tokenizer.to_files()).encode("Cat É 中文") == ids
    # Where they do not say, or the class is not BERT's, the file itself speaks.
    for others in ({}, say(tokenizer_class="PreTrainedTokenizerFast", do_lower_case=not in_json)):
        assert load({**files, **others}).config.lowercase == in_json


def test_files_that_cannot_be_used_are_one_line():
    cases = [
        (b"[CLS]\n[SEP]\n", "lacks its unknown token"),
        (b"[UNK]\na\n", "no end token is known: name it in tokenizer_config.json as sep_token"),
    ]
    for vocab, message in cases:
        with pytest.raises(LabError, match=message):
            load({"vocab.txt": vocab})


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.text(st.characters(exclude_categories=["Z", "Cc"]), min_size=1)))
def test_words_one_by_one_are_the_pieces_of_the_text(trained, words):
    found = trained.encode_words(words)
    assert len(found) == len(words)
    assert list(chain.from_iterable(found)) == trained.encode(" ".join(words))


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("The  cats\tsat", ["The", "cat", "s", "sat"]),
        ("\0Ca\u200bts\u0301 É", ["Ca\u200bt", "s", "É"]),  # the mark is in none
        ("zzz cat", ["zzz", "cat"]),  # unknown
        ("中cat", ["中", "cat"]),
        ("", []),
    ],
)
def test_offsets_are_places_in_the_original_text(text, spans):
    tokenizer = load(bert("the", "cat", "##s", "sat", "e"))
    ids, places = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert [text[start:end] for start, end in places] == spans


def test_offsets_of_byte_level_pieces_leave_the_blank_before_a_word_out():
    tokenizer = train(TokenizerConfig(kind="byte_bpe", vocab_size=280), ["the cat sat the cat"] * 3)
    text = "the cat é  the"
    for kind in (tokenizer, load(gpt2(tokenizer))):
        ids, places = kind.encode_with_offsets(text)
        assert ids == kind.encode(text)
        # Both bytes of a letter are the letter; of two blanks one is a piece of its own.
        spans = [text[start:end] for start, end in places]
        assert spans == ["the", "cat", " ", "é", "é", " ", "the"]


def test_kinds_that_do_not_know_offsets_or_words_and_texts_that_shift_are_refused(trained):
    with pytest.raises(LabError, match="a byte tokenizer does not tell where a token stands"):
        train(TokenizerConfig(kind="byte"), []).encode_with_offsets("a")
    with pytest.raises(LabError, match="without surrogate pairs"):
        trained.encode_with_offsets("\ud83d\ude00 cat")
    assert trained.encode_with_offsets("\ud800 cat")[1] == [(2, 5)]
    # Nor do all kinds know what continues a word.
    every = range(trained.vocab_size)
    assert [trained.continues(i) for i in every] == [trained.piece(i)[:2] == "##" for i in every]
    with pytest.raises(LabError, match="outside"):
        trained.continues(trained.vocab_size)
    with pytest.raises(LabError, match="a byte tokenizer's pieces do not tell words apart"):
        train(TokenizerConfig(kind="byte"), []).continues(5)


def test_robertas_special_tokens_are_found_though_it_has_another_end_token():
    # Its vocabulary holds GPT-2's end of text too, as an ordinary piece.
    vocab = ["<s>", "<pad>", "</s>", "<unk>", "a", "<|endoftext|>", "<mask>", *"</s>maskpdun|oftx"]
    ids = {piece: i for i, piece in enumerate(dict.fromkeys(vocab))}
    old = {"vocab.json": json.dumps(ids).encode(), "merges.txt": b"#version: 0.2\n"}
    library = tokenizers.Tokenizer(models.BPE(ids, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    for files in (old, {"tokenizer.json": library.to_str().encode()}):
        tokenizer = load(files)
        assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id) == (0, 1, 2)
        assert (tokenizer.unk_id, tokenizer.mask_id) == (3, 6)
        assert not tokenizer.special_ids & set(tokenizer.encode("<mask></s><s>a"))
        assert load(tokenizer.to_files()).mask_id == 6
