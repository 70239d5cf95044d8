"""Byte-level BPE that is trained here, and tokenizers of Hugging Face directories."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from transformer_lab.errors import LabError
from transformer_lab.text import TokenizerConfig, load, train

FAMILY = "👨\u200d👩\u200d👧\u200d👦"
TEXTS = ["the cat sat on the mat, the cat", " the end </s>\n", "naïve café"] * 3


@pytest.fixture(scope="module")
def trained():
    return train(TokenizerConfig(kind="byte_bpe", vocab_size=280), TEXTS)


def gpt2(trained, **names):
    """A tokenizer.json like GPT-2's: no padding, one special token, which ends the vocabulary."""
    model = json.loads(trained.to_files()["byte_bpe.json"])["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)[4:]
    vocab = {piece: i for i, piece in enumerate([*pieces, "<|endoftext|>"])}
    library = tokenizers.Tokenizer(models.BPE(vocab, list(map(tuple, model["merges"]))))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>"])
    library.enable_truncation(4)
    return {"tokenizer.json": library.to_str().encode(), **names}


def llama(**names):
    """A tokenizer.json like LLaMA's: pieces with U+2581, then bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {piece: i for i, piece in enumerate([*pieces, *"▁<>/scat", "▁c", "at", "▁cat"])}
    merges = [("▁", "c"), ("a", "t"), ("▁c", "at")]
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    return {"tokenizer.json": library.to_str().encode(), **names}


def as_json(**values):
    return json.dumps(values).encode()


@settings(max_examples=150, deadline=None)
@given(text=st.text())
def test_case_54_random_unicode_returns_and_no_special_token_is_in_it(trained, text):
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert not {0, 1, 2, 3}.intersection(ids)


def test_training_merges_frequent_pairs_after_specials_and_bytes(trained):
    assert [trained.piece(i) for i in range(4)] == ["<pad>", "</s>", "<s>", "<unk>"]
    assert trained.vocab_size == 280
    assert all(len(trained.piece(i)) == 1 for i in range(4, 260))
    # "at" stands twelve times, "the" nine times; "Ġ" is the space that belongs to a word.
    assert trained.piece(260) == "at"
    assert [trained.piece(i) for i in trained.encode("the cat the")] == ["the", "Ġcat", "Ġthe"]
    few = train(
        TokenizerConfig(kind="byte_bpe", vocab_size=5000), ["ab ab"]
    )  # no more than there is
    assert [few.piece(i) for i in range(260, few.vocab_size)] == ["ab", "Ġab"]


def test_damaged_files_are_refused(trained):
    damaged = trained.to_files()["byte_bpe.json"]
    for content, words in [(b"{", "cannot be read"), (damaged.replace(b"<s>", b"<x>"), "begin")]:
        with pytest.raises(LabError, match=rf"byte_bpe\.json.* {words}"):
            load({**trained.to_files(), "byte_bpe.json": content})


def test_a_foreign_file_keeps_its_ids(trained):
    tokenizer = load(gpt2(trained))
    assert (tokenizer.vocab_size, tokenizer.config.vocab_size) == (277, 277)
    assert tokenizer.encode("the cat the mat") == [i - 4 for i in trained.encode("the cat the mat")]
    end = tokenizer.eos_id
    assert end == tokenizer.pad_id == tokenizer.bos_id == tokenizer.unk_id == 276
    assert tokenizer.piece(end) == "<|endoftext|>"
    assert end not in tokenizer.encode("a<|endoftext|>b")


def test_the_older_files_of_gpt2_give_the_same_ids(trained):
    old = older(trained)
    new, tokenizer = load(gpt2(trained)), load(old)
    for text in ("the cat", "y is ?", "a\r\n\n b  ", f"\0{FAMILY}!", "<pad></s><|endoftext|> </s>"):
        assert tokenizer.encode(text) == new.encode(text)
        assert tokenizer.decode(new.encode(text)) == text
    assert load(tokenizer.to_files()).encode("the cat") == new.encode("the cat")
    spaced = load({**old, "tokenizer_config.json": as_json(add_prefix_space=True)})
    assert spaced.encode("the") == new.encode(" the")
    with pytest.raises(LabError, match=r"merges\.txt are no BPE tokenizer"):
        load({**old, "merges.txt": b"#version: 0.2\nthe zebra\n"})


ADDED = {"<pad>": 277, "<|user|>": 278, "<|bot|>": 279}


def older(trained, **more):
    """GPT-2's older files, of 277 pieces, and JSON files beside them."""
    model = json.loads(gpt2(trained)["tokenizer.json"])["model"]
    lines = "#version: 0.2\n" + "\n".join(map(" ".join, model["merges"])) + "\n"
    files = {"vocab.json": as_json(**model["vocab"]), "merges.txt": lines.encode()}
    return files | {f"{name}.json": as_json(**value) for name, value in more.items()}


def test_tokens_that_were_added_to_a_vocabulary_have_their_ids_and_properties(trained):
    names = {"pad_token": "<pad>", "eos_token": "<|endoftext|>"}
    described = {
        str(number): {"content": piece, "special": piece == "<pad>", "lstrip": piece == "<|bot|>"}
        for piece, number in ADDED.items()
    }
    plain = load(older(trained)).encode
    for files, middle in (
        ({"added_tokens": ADDED, "tokenizer_config": names}, "the cat "),
        # Here the blank on its left belongs to the last one.
        ({"tokenizer_config": names | {"added_tokens_decoder": described}}, "the cat"),
    ):
        tokenizer = load(older(trained, **files))
        assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.eos_id) == (280, 277, 276)
        ids = tokenizer.encode("<|user|>the cat <|bot|>")
        assert ids == load(tokenizer.to_files()).encode("<|user|>the cat <|bot|>")
        assert ids == [278, *plain(middle), 279]
        assert tokenizer.decode([278, *plain("é"), 279]) == "<|user|>é<|bot|>"
        assert 277 not in tokenizer.encode("<pad>")  # no text spells a special token


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"added_tokens": {"<a>": 300}}, "'<a>' has the id 300, but by the vocabulary it is 277"),
        ({"added_tokens": {"<a>": None}}, "added_tokens.json: None: .* is no added token"),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"277": 5}}},
            "tokenizer_config.json: '277': 5 is no added token",
        ),
        ({"tokenizer_config": {"added_tokens_decoder": [1]}}, "must map ids to tokens"),
    ],
)
def test_added_tokens_that_cannot_be_are_one_line(files, named, trained):
    with pytest.raises(LabError, match=named):
        load(older(trained, **files))


@pytest.mark.parametrize(
    ("files", "ids"),
    [  # end, start, padding
        ({}, (2, 1, 2)),
        ({"tokenizer_config.json": as_json(eos_token="<s>", pad_token=None)}, (1, 1, 1)),
        ({"special_tokens_map.json": as_json(pad_token={"content": "<unk>"})}, (2, 1, 0)),
        ({"config.json": as_json(eos_token_id=[5, 2], pad_token_id=-1)}, (5, 1, 5)),
        ({"generation_config.json": as_json(pad_token_id=7, bos_token_id=9999)}, (2, 1, 7)),
        (
            {
                "tokenizer_config.json": as_json(eos_token={"content": "</s>"}, bos_token="<no>"),
                "config.json": as_json(eos_token_id=9, bos_token_id=8),
            },
            (2, 8, 2),
        ),
    ],
)
def test_special_ids_come_from_the_files_beside_it_else_from_names(files, ids):
    tokenizer = load(llama(**files))
    for found in (tokenizer, load(tokenizer.to_files())):
        assert (found.eos_id, found.bos_id, found.pad_id) == ids
        assert found.unk_id == 0


def test_llama_like_text_returns_and_only_a_wrong_byte_is_replaced():
    tokenizer = load(llama())
    for text in ("cat", " cat", "cat  ", "é日 </s><s>", f"{FAMILY}", "a\r\n\0"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.piece(i) for i in tokenizer.encode("cat")] == ["▁cat"]
    byte = [3 + b for b in "日".encode()]
    assert tokenizer.decode([*byte, 3 + 0xFF, *byte]) == "日\ufffd日"


def test_no_text_spells_a_special_token_even_where_it_is_a_plain_piece():
    # Without pre-tokenizer and with ignore_merges, a whole text that is a piece becomes it.
    vocab = {piece: i for i, piece in enumerate([*"</s>x", "</s>"])}
    library = tokenizers.Tokenizer(models.BPE(vocab, [], ignore_merges=True))
    library.decoder = decoders.Fuse()
    assert library.encode("</s>").ids == [5]
    for special in (False, True):
        library.add_tokens([AddedToken("</s>", special=special)])
        tokenizer = load({"tokenizer.json": library.to_str().encode()})
        assert tokenizer.eos_id == 5
        assert tokenizer.encode("</s>") == [0, 1, 2, 3]
        assert tokenizer.decode(tokenizer.encode("</s>x")) == "</s>x"


def test_a_foreign_tokenizer_that_cannot_be_used_is_one_line(trained):
    with pytest.raises(LabError, match=r"tokenizer\.json cannot be read by the tokenizers"):
        load({"tokenizer.json": b'{"model": 3}'})
    nameless = gpt2(trained)["tokenizer.json"].replace(b"<|endoftext|>", b"<|other|>")
    with pytest.raises(LabError, match=r"name it in tokenizer_config\.json as eos_token"):
        load({"tokenizer.json": nameless})
    named = {"tokenizer_config.json": as_json(eos_token="<|other|>")}
    assert load({"tokenizer.json": nameless, **named}).eos_id == 276


# CLIP.

CLIP_MERGES = [("l", "o"), ("lo", "w</w>"), ("e", "r</w>"), ("lo", "w"), ("low", "er</w>")]
CLIP_MERGES += [("'", "s</w>"), ("Ã", "©</w>")]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
CLIP_PIECES = [*ALPHABET, *(c + "</w>" for c in ALPHABET), *map("".join, CLIP_MERGES)]
CLIP_VOCAB = {p: i for i, p in enumerate([*CLIP_PIECES, "<|startoftext|>", "<|endoftext|>"])}
CLIP_FILES = {
    "vocab.json": json.dumps(CLIP_VOCAB).encode(),
    "merges.txt": ("#version: 0.2\n" + "\n".join(map(" ".join, CLIP_MERGES)) + "\n").encode(),
}
CLIP_CASES = [  # text, ids by transformers 5.24, text of the ids
    ("low", [513], "low"),
    (" LOW  lower's\n", [513, 516, 517], "low lower 's"),
    ("Café e\u0301 x", [66, 64, 69, 518, 518, 343], "café é x"),
    ("10 & a!", [272, 271, 261, 320, 256], "1 0 & a !"),
    ("\u00a0low\tlow", [513, 513], "low low"),
    ("", [], ""),
]


@pytest.fixture(scope="module")
def clip():
    return load(CLIP_FILES)


@pytest.mark.parametrize(("words", "ids", "back"), CLIP_CASES)
def test_clips_ids_are_the_references_and_return_as_words(clip, words, ids, back):
    assert clip.encode(words) == ids
    assert clip.decode(ids) == back


def test_clips_special_ids_are_spelt_by_no_text_and_every_byte_returns(clip):
    assert (clip.bos_id, clip.eos_id, clip.pad_id) == (519, 520, 520)
    assert not {519, 520} & set(clip.encode("<|endoftext|> a <|startoftext|>"))
    for words in ("😀 ok", "日本", "\x01"):
        assert clip.decode(clip.encode(words)) == words


def test_a_tokenizer_json_and_a_stored_copy_give_the_same(clip):
    theirs = tokenizers.Tokenizer.from_str(clip._library.to_str())
    theirs.decoder = decoders.ByteLevel()  # as they store it
    for files in ({"tokenizer.json": theirs.to_str().encode()}, clip.to_files()):
        again = load(files)
        for words, ids, back in CLIP_CASES:
            assert again.encode(words) == ids and again.decode(ids) == back
