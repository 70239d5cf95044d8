"""What lies in the page is what the model computed, and nothing in it is run or fetched."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

from transformer_lab.viewing import page as page_module
from transformer_lab.viewing.capture import Map
from transformer_lab.viewing.page import page

HOSTILE = ["</script><script>window.hacked = 1</script>", "<!--<script>", "{{data}}", "\u2028&lt;"]
SIZES = {"layers": 2, "heads": 3, "rows": 4, "columns": 5}


def random_map(layers=2, heads=3, rows=4, columns=5, **more):
    weights = np.random.default_rng(0).dirichlet([1.0] * columns, (layers, heads, rows))
    names = [*HOSTILE, *(f"t{i}" for i in range(max(rows, columns)))]
    return Map(weights.astype(np.float32), names[:rows], names[:columns], **more)


def embedded(text):
    """The JSON of a page, as a browser finds it: up to the first end of a script."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script', text, re.S)
    return json.loads(found)


def unpacked(text, dtype):
    """The array behind a text of the page."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


def decoded(kind):
    """The weights of an embedded map."""
    rows = len(kind["rows"])
    return np.array([
        [unpacked(w, f"<u{kind['bytes']}").reshape(rows, -1) / kind["levels"]
         * unpacked(m, "<f4")[:, None] for w, m in zip(*layer, strict=True)]
        for layer in zip(kind["weights"], kind["largest"], strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize(("fine", "bound"), [(2**23, 1 / 65535), (0, 1 / 255)])
def test_embedded_weights_decode_to_the_models(fine, bound, monkeypatch):
    monkeypatch.setattr(page_module, "FINE", fine)
    found = random_map()
    kinds = embedded(page({"one": found, "two": random_map(columns=3)}, "t"))["maps"]
    assert [kind["name"] for kind in kinds] == ["one", "two"]
    error = np.abs(decoded(kinds[0]) - found.weights) / found.weights.max(axis=-1, keepdims=True)
    assert error.max() <= 0.5001 * bound and (error > 0).any()


def test_a_row_without_any_weight_stays_zero():
    found = random_map()
    found.weights[1, 2, 3] = 0.0
    assert not decoded(embedded(page({"one": found}, "t"))["maps"][0])[1, 2, 3].any()


def test_a_hostile_token_stays_text_and_the_page_asks_for_nothing():
    text = page({"one": random_map()}, "<b>title</b> {{data}}")
    data = embedded(text)
    assert data["maps"][0]["rows"] == HOSTILE and data["title"] == "<b>title</b> {{data}}"
    assert text.count("<script") == text.count("</script>") == 2
    assert "<b>" not in text and "<!--" not in text
    assert "default-src 'none'" in text and not re.search(r"https?:|src=|href=|fetch\(", text)


@pytest.mark.slow
def test_at_512_tokens_a_page_is_below_5_mb_and_as_exact_as_its_levels_say():
    rng = np.random.default_rng(0)  # peaked rows, as trained heads have them
    logits = rng.normal(0, 3, (2, 36, 512, 512)).astype(np.float32)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    names = [f"t{i}" for i in range(512)]
    text = page({"one": Map(weights, names, names)}, "t")
    assert 1_000_000 < len(text) < 5_000_000
    kind = embedded(text)["maps"][0]
    share = np.abs(decoded(kind) - weights) / weights.max(axis=-1, keepdims=True)
    assert share.max() <= 0.5001 / kind["levels"] and kind["levels"] in page_module.LEVELS


def test_a_thumbnail_holds_the_largest_weight_of_each_part():
    weights = np.zeros((1, 1, 64, 96), np.float32)
    weights[0, 0, 5, 7], weights[0, 0, 63, 95] = 0.5, 0.25
    small = page_module.thumbnails(weights)[0, 0]
    assert small.shape == (32, 32) and small[2, 2] == 255 and small[31, 31] == 128
    assert small.sum() == 255 + 128
    assert page_module.thumbnails(weights[..., :3, :4]).shape == (1, 1, 3, 4)
