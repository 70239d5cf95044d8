"""What lies in the page is what the model computed, and nothing in it is run or fetched."""

import base64
import json
import re

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


def decoded(kind):
    """The weights of an embedded map."""
    array = lambda text, dtype: np.frombuffer(base64.b64decode(text), dtype)  # noqa: E731
    top = 2 ** (8 * kind["bytes"]) - 1
    rows = len(kind["rows"])
    return np.array([
        [array(w, f"<u{kind['bytes']}").reshape(rows, -1) / top * array(m, "<f4")[:, None]
         for w, m in zip(*layer, strict=True)]
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
