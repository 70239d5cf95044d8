"""The tokenizer in a GGUF file's metadata, as the files of a Hugging Face directory."""

import json
from typing import Any

from transformer_lab.errors import LabError, fits, known
from transformer_lab.pretrained.gguf_file import GgufFile
from transformer_lab.text.library import tokenizers
from transformer_lab.text.tokenizer import HEADER, SETTINGS

NORMAL, CONTROL, OWN = 1, 3, 4  # types of tokens: of text, never in text, added to the text's
# How `tokenizer.ggml.pre` splits text before the merges: by these expressions, one after the
# other; "" are GPT-2's, which the library has.
DIGITS = r"\p{N}"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "gpt-2": ("",),
    "smollm": (DIGITS, ""),
    "starcoder": (DIGITS, ""),
    "refact": (DIGITS, ""),
    "command-r": (DIGITS, ""),
    "codeshell": (DIGITS, ""),
    "llama-bpe": (LLAMA3,),
    "qwen2": (LLAMA3.replace("{1,3}", ""),),
}
LISTS = {"tokens": list[str], "merges": list[str], "token_type": list[int]}


def tokenizer_files(file: GgufFile) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json, with the chat template if there is one.

    Raises: LabError for a tokenizer of another kind than byte-level BPE."""
    own = lambda name: file.metadata.get(f"tokenizer.ggml.{name}")  # noqa: E731
    if own("model") != "gpt2":
        raise file.error(f"tokenizer.ggml.model = {own('model')!r}: only gpt2, byte-level BPE, is")
    found = {name: own(name) for name in LISTS}
    for name, hint in LISTS.items():
        if not fits(found[name], hint):
            raise file.error(f"tokenizer.ggml.{name} is missing, or no list of them")
    tokens, kinds = found["tokens"], found["token_type"]
    if len(kinds) != len(tokens) or len({*tokens}) != len(tokens):
        raise file.error("tokenizer.ggml.tokens has a token twice, or not as many token_type")
    known(f"{file.path}: tokenizer.ggml.pre = ", own("pre"), SPLITS)
    library = _library(file, tokens, found["merges"], SPLITS[own("pre")])
    added = tokenizers().AddedToken
    library.add_tokens([added(t) for t, kind in zip(tokens, kinds, strict=True) if kind == OWN])
    controls = [added(t) for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    library.add_special_tokens(controls)
    return {
        HEADER: library.to_str().encode(),
        SETTINGS: json.dumps(_settings(file, tokens), indent=1, ensure_ascii=False).encode(),
    }


def _library(file: GgufFile, tokens: list[str], merges: list[str], splits: tuple[str, ...]) -> Any:
    lib = tokenizers()
    pairs = [tuple(merge.split(" ")) for merge in merges]
    try:
        vocab = {token: i for i, token in enumerate(tokens)}
        library = lib.Tokenizer(lib.models.BPE(vocab=vocab, merges=pairs))
    except Exception as error:  # the library raises plain Exception
        raise file.error(f"tokenizer.ggml.merges do not fit its tokens: {error}") from None
    before = lib.pre_tokenizers
    parts = [before.Split(lib.Regex(split), "isolated") for split in splits if split]
    parts.append(before.ByteLevel(add_prefix_space=False, use_regex=not splits[-1]))
    library.pre_tokenizer, library.decoder = before.Sequence(parts), lib.decoders.ByteLevel()
    return library


def _settings(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    """The names of the special tokens, whether a text begins with one, and the chat template."""
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token is None:
            continue
        if type(token) is not int or not 0 <= token < len(tokens):
            raise LabError(f"{file.path}: tokenizer.ggml.{name}_token_id = {token!r} is no token")
        settings[f"{role}_token"] = tokens[token]
    if isinstance(begins := file.metadata.get("tokenizer.ggml.add_bos_token"), bool):
        settings["add_bos_token"] = begins
    if isinstance(template := file.metadata.get("tokenizer.chat_template"), str):
        settings["chat_template"] = template
    return settings
