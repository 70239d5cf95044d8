"""The page in a real browser without a head; skipped where none is installed."""

import shutil

import numpy as np
import pytest

from tests.viewing.test_page import HOSTILE, random_map
from transformer_lab.viewing.page import page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def text_map():
    """An encoder's two sentences of two words each, between special tokens."""
    found = random_map(layers=3, rows=7, columns=7)
    tokens = ["[CLS]", "a", "b", "[SEP]", "c", "d", "[SEP]"]
    return found._replace(rows=tokens, columns=tokens)


@pytest.fixture(scope="module")
def maps():
    picture = np.full((20, 30, 3), 255, np.uint8)
    return {
        "self": random_map(columns=4),
        "cross": random_map(layers=1, rows=3, columns=6),
        "patches": random_map(rows=7, columns=7, picture=picture, grid=(2, 3)),
        "text": text_map(),
        "sound": random_map(rows=3, columns=60, picture=picture // 2, seconds=0.02),
    }


@pytest.fixture
def tab(browser, maps, tmp_path):
    """The page, opened from a file; nothing may fail in it or be fetched."""
    file = tmp_path / "page.html"
    file.write_text(page(maps, HOSTILE[0]), encoding="utf-8")
    tab, wrong, asked = browser.new_page(), [], []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    tab.on("request", lambda request: asked.append(request.url.split(":")[0]))
    tab.goto(file.as_uri())
    settled(tab)
    yield tab
    assert wrong == [] and set(asked) <= {"file", "data"} and asked.count("file") == 1
    tab.close()


def settled(tab):
    """Waits until what was chosen is drawn."""
    tab.wait_for_selector("body:not([data-busy])")


def pressed(tab, id, *keys):
    tab.focus(f"#{id}")
    for key in keys:
        tab.keyboard.press(key)
        settled(tab)


def select(tab, id, value):
    tab.select_option(f"#{id}", value)
    settled(tab)


def table(tab):
    return tab.eval_on_selector_all(
        "#links tr", "rows => rows.map(r => [...r.cells].map(c => c.textContent))"
    )


def strongest(weights, rows, columns, count=20):
    """The table that must be shown."""
    order = np.argsort(-weights, axis=None, kind="stable")[:count]
    return [
        [f"{rows[i]} ({i})", f"{columns[j]} ({j})", f"{weights[i, j]:.4f}"]
        for i, j in zip(*np.unravel_index(order, weights.shape), strict=True)
    ]


def close(found, want):
    """The same links, the weights to their last digit."""
    assert [line[:2] for line in found] == [line[:2] for line in want]
    weights = [[float(line[2]) for line in lines] for lines in (found, want)]
    np.testing.assert_allclose(*weights, atol=1.01e-4)


def test_a_head_chosen_by_keyboard_shows_the_models_weights(tab, maps):
    found = maps["self"]
    pressed(tab, "layer", "ArrowDown")
    pressed(tab, "head", "ArrowDown", "ArrowDown")
    close(table(tab), strongest(found.weights[1, 2], found.rows, found.columns))
    pressed(tab, "heat", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight")
    told = tab.inner_text("#shown")
    assert told.startswith(f"{found.rows[2]} (2) → {HOSTILE[1]} (1): ")
    assert told.endswith("(self, layer 1, head 2)")
    shown = float(told.split(": ")[1].split()[0])
    assert shown == pytest.approx(found.weights[1, 2, 2, 1], abs=6e-5)
    close(table(tab), [
        [f"{found.rows[2]} (2)", *line[1:]]
        for line in strongest(found.weights[1, 2, 2:3], found.rows, found.columns)
    ])  # fmt: skip
    pressed(tab, "head", "ArrowDown")
    select(tab, "row", "-1")
    close(table(tab), strongest(found.weights[1].mean(axis=0), found.rows, found.columns))


def test_a_click_and_the_darkest_cell_are_the_same_weight(tab, maps):
    found = maps["cross"]
    select(tab, "map", "1")
    assert tab.locator("#layer option").count() == 1
    i, j = np.unravel_index(found.weights[0, 0].argmax(), found.weights.shape[2:])
    colours = tab.evaluate(
        """([i, j]) => { const canvas = document.getElementById("heat");
        const at = n => (margin + (n + .5) * 24) * canvas.width / parseFloat(canvas.style.width);
        return [...canvas.getContext("2d").getImageData(at(j), at(i), 1, 1).data]; }""",
        [int(i), int(j)],
    )
    assert colours == [8, 48, 107, 255]
    edge = tab.evaluate("margin")
    assert 50 < edge <= 150  # as the labels need it
    tab.click("#heat", position={"x": edge + 24 * int(j) + 12, "y": edge + 24 * int(i) + 12})
    settled(tab)
    assert f": {found.weights[0, 0].max():.4f} (" in tab.inner_text("#shown")


def test_a_hostile_token_stays_text(tab):
    assert tab.evaluate("window.hacked") is None
    assert tab.title() == tab.inner_text("h1") == HOSTILE[0]
    options = tab.locator("#row option").all_text_contents()
    assert options == ["all", *(f"{token} ({i})" for i, token in enumerate(HOSTILE))]


def test_what_can_be_chosen_or_seen_has_a_name(tab):
    for id, name in (("map", "Attention"), ("layer", "Layer"), ("head", "Head")):
        assert tab.get_by_label(name, exact=True).get_attribute("id") == id
    unnamed = "c => c.filter(e => !e.getAttribute('aria-label')).length"
    assert tab.eval_on_selector_all("canvas", unnamed) == 0
    assert tab.get_by_role("status").get_attribute("id") == "shown"


def test_patches_lie_over_the_picture_and_only_where_there_is_one(tab, maps):
    assert tab.is_hidden("#picture")
    select(tab, "map", "2")
    tab.wait_for_selector("#picture", state="visible")
    weights = maps["patches"].weights[0, 0, 0, 1:].reshape(2, 3)
    colour = """([i, j]) => { const canvas = document.getElementById("picture");
        const x = (j + .5) / 3 * canvas.width, y = (i + .5) / 2 * canvas.height;
        return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data]; }"""
    for i, j in np.ndindex(2, 3):  # red of so much over white
        share = 0.75 * weights[i, j] / weights.max()
        want = [255 - 35 * share, 255 * (1 - share), 255 * (1 - share), 255]
        assert tab.evaluate(colour, [i, j]) == pytest.approx(want, abs=2.5)
    select(tab, "row", "3")
    weights = maps["patches"].weights[0, 0, 3, 1:].reshape(2, 3)
    i, j = np.unravel_index(weights.argmax(), (2, 3))
    assert tab.evaluate(colour, [int(i), int(j)]) == pytest.approx([229, 64, 64, 255], abs=2.5)


def test_sound_is_seen_above_its_frames(tab, maps):
    select(tab, "map", "4")
    assert tab.is_hidden("#picture") and tab.is_hidden("#lines")
    colour = """([x, y]) => { const canvas = document.getElementById("heat"),
        ratio = canvas.width / parseFloat(canvas.style.width);
        return [...canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data]; }"""
    tab.wait_for_function(f"({colour})([400, 60])[0] === 127")  # the picture is grey
    weights = maps["sound"].weights[0, 0]
    for i, j in ((0, 0), (2, 59), (1, 30)):  # columns of 8 pixels, rows of 20
        share = weights[i, j] / weights.max()
        want = [255 - 247 * share, 255 - 207 * share, 255 - 148 * share, 255]
        assert tab.evaluate(colour, [154 + 8 * j, 160 + 20 * i]) == pytest.approx(want, abs=2.5)
    tab.click("#heat", position={"x": 150 + 8 * 30 + 4, "y": 150 + 20 + 5})
    settled(tab)
    assert tab.inner_text("#shown").endswith(f"{weights[1, 30]:.4f} (sound, layer 0, head 0)")


def ends(lines):
    """The numbers of the tokens that some links of the table join."""
    return [{int(line[side].split("(")[1][:-1]) for line in lines} for side in (0, 1)]


def test_sentences_and_special_tokens_are_filtered(tab, maps):
    assert tab.is_hidden("#part")
    select(tab, "map", "3")
    assert tab.locator("#part").is_visible()
    select(tab, "part", "AB")
    assert ends(table(tab)) == [{0, 1, 2, 3}, {4, 5, 6}]
    tab.check("#hide")
    settled(tab)
    assert ends(table(tab)) == [{1, 2}, {4, 5}]
    weights = maps["text"].weights[0, 0, 1:3, 4:6]
    shown = sorted(float(line[2]) for line in table(tab))
    np.testing.assert_allclose(shown, sorted(weights.ravel()), atol=1e-4)


def test_several_heads_have_their_mean_in_the_table_and_a_mixed_colour_each(tab, maps):
    chips = tab.locator(".chip")
    chips.nth(2).click()
    settled(tab)
    pressed_chips = [chip.get_attribute("aria-pressed") for chip in chips.all()]
    assert pressed_chips == ["true", "false", "true"]
    found = maps["self"]
    mean = found.weights[0, [0, 2]].mean(axis=0)
    close(table(tab), strongest(mean, found.rows, found.columns))
    assert "head 0 + 2" in tab.inner_text("#shown")
    peak, hues = found.weights[0, [0, 2]].max(), np.array([[18, 97, 166], [26, 127, 55]])
    colour = """([x, y]) => { const canvas = document.getElementById("heat"),
        ratio = canvas.width / parseFloat(canvas.style.width);
        return [...canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data]; }"""
    for i, j in ((0, 0), (3, 2)):
        shares = found.weights[0, [0, 2], i, j] / peak
        want = 255 * np.prod(1 - shares[:, None] * (1 - hues / 255), axis=0)
        at = [tab.evaluate("margin") + 24 * n + 12 for n in (j, i)]
        assert tab.evaluate(colour, at)[:3] == pytest.approx(want.tolist(), abs=2.5)


def test_a_thumbnail_chooses_its_layer_and_head(tab, maps):
    tab.click("#thumbs", position={"x": 48 * 1 + 20, "y": 48 * 1 + 20})
    settled(tab)
    found = maps["self"]
    close(table(tab), strongest(found.weights[1, 1], found.rows, found.columns))
    assert tab.input_value("#layer") == tab.input_value("#head") == "1"


def test_a_rollout_is_the_product_of_the_layers_means(tab, maps):
    select(tab, "map", "3")
    select(tab, "layer", "3")
    found, product = maps["text"], np.eye(7)
    for layer in found.weights.mean(axis=1):
        product = (layer + np.eye(7)) / 2 @ product
    close(table(tab), strongest(product, found.rows, found.columns))
    assert "rollout" in tab.inner_text("#shown")


def test_a_click_on_a_patch_chooses_its_token(tab, maps):
    select(tab, "map", "2")
    tab.wait_for_selector("#picture", state="visible")
    tab.click("#picture", position={"x": 384 / 3 * 1.5, "y": 256 / 2 * 1.5})
    settled(tab)
    assert tab.input_value("#row") == str(1 + 3 + 1)  # after the first token: row 1, column 1


@pytest.mark.parametrize(("wide", "scheme"), [(390, "light"), (390, "dark"), (1200, "dark")])
def test_no_width_and_no_colour_scheme_breaks_the_page(browser, maps, tmp_path, wide, scheme):
    """Nothing is wider than the screen, and text is readable on its background."""
    file = tmp_path / "page.html"
    file.write_text(page(maps, "a title " * 40), encoding="utf-8")
    tab = browser.new_page(viewport={"width": wide, "height": 800}, color_scheme=scheme)
    tab.goto(file.as_uri())
    settled(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") <= wide
    assert tab.evaluate("document.querySelector('h1').getBoundingClientRect().height") < 40
    style = "getComputedStyle(document.body)"
    text, back = (tab.evaluate(f"{style}.{name}") for name in ("color", "backgroundColor"))
    light = [sum(map(int, colour[4:-1].split(","))) / 3 for colour in (text, back)]
    assert abs(light[0] - light[1]) > 150 and (light[1] < 128) == (scheme == "dark")
    tab.close()


def test_of_many_tokens_the_strongest_lines_are_drawn_where_they_are_seen(browser, tmp_path):
    found = random_map(layers=1, heads=1, rows=200, columns=200)
    file = tmp_path / "page.html"
    file.write_text(page({"one": found}, "many"), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1200, "height": 700})
    tab.goto(file.as_uri())
    settled(tab)
    shown = tab.evaluate("strongest(MOST_LINES).map(link => link[2])")
    want = np.sort(found.weights.ravel())[::-1][:4000]
    np.testing.assert_allclose(shown, want, atol=found.weights.max() / 65535)
    inked = """([from, to]) => { const canvas = document.getElementById("lines"),
        ratio = canvas.height / parseFloat(canvas.style.height);
        return canvas.getContext("2d").getImageData(0, from * ratio, canvas.width,
          (to - from) * ratio).data.some(value => value > 0); }"""
    high = tab.evaluate("document.getElementById('lines').clientHeight")
    assert high == 200 * 12  # of which 595 are seen, and 100 more are drawn
    assert tab.evaluate(inked, [0, 690]) and not tab.evaluate(inked, [700, high])
    scroll = "top => document.getElementById('lines').parentElement.scrollTo(0, top)"
    for top, part in (300, [700, 900]), (high, [high - 100, high]), (1300, [1300, 1400]):
        tab.evaluate(scroll, top)
        tab.wait_for_function(inked, arg=part)
    assert not tab.evaluate(inked, [1010, 1190])  # what nobody has seen
    tab.close()


def test_each_thumbnail_shows_its_own_head(tab, maps):
    """The larger a weight the darker its part, but for the smoothing; also after a quick change."""
    tab.evaluate("choose({ map: 1 }); choose({ map: 0 })")
    settled(tab)
    colour = """([x, y]) => { const canvas = document.getElementById("thumbs"),
        ratio = canvas.width / parseFloat(canvas.style.width);
        return [...canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data]; }"""
    weights = maps["self"].weights
    for layer, head in np.ndindex(weights.shape[:2]):
        reds = np.empty((4, 4))
        for row, column in np.ndindex(4, 4):
            x, y = 48 * head + (column + 0.5) * 46 / 4, 48 * layer + (row + 0.5) * 46 / 4
            reds[row, column] = tab.evaluate(colour, [x, y])[0]
        shares = weights[layer, head] / weights[layer, head].max()
        assert np.corrcoef(reds.ravel(), 255 - 247 * shares.ravel())[0, 1] > 0.99
