"""Odd images: every kind of file becomes one form, and what is no image is refused in one line."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from transformer_lab.data.images import reading
from transformer_lab.data.images.reading import from_array, read_image
from transformer_lab.errors import LabError

RGB = np.random.default_rng(0).integers(256, size=(3, 5, 3), dtype=np.uint8)


def encoded(pixels, form="PNG", mode=None, **options):
    file = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "form, options", [("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {}), ("TIFF", {})]
)
def test_lossless_colours_return(form, options):
    np.testing.assert_array_equal(read_image(encoded(RGB, form, **options)), RGB)


def test_jpegs_in_rgb_and_cmyk_are_about_the_same_colour():
    for colour in ((200, 30, 60), (10, 90, 220)):
        flat = Image.new("RGB", (16, 8), colour)
        for mode in ("RGB", "CMYK"):
            found = read_image(encoded(flat, "JPEG", mode, quality=95))
            assert found.shape == (8, 16, 3)
            assert np.abs(found.astype(int) - colour).max() <= 3


def test_grey_of_any_depth_has_three_equal_channels_or_one():
    grey = RGB[..., 0]
    np.testing.assert_array_equal(read_image(encoded(grey)), np.stack([grey] * 3, -1))
    np.testing.assert_array_equal(read_image(encoded(grey), 1), grey[..., None])
    weights = RGB @ [0.299, 0.587, 0.114]
    assert np.abs(read_image(encoded(RGB), 1)[..., 0] - weights).max() <= 1
    # Sixteen bits are scaled, not clipped.
    levels = np.asarray([[0, 257, 128 * 257, 255 * 257, 300, 65000]], np.uint16)
    assert read_image(encoded(levels), 1).ravel().tolist() == [0, 1, 128, 255, 1, 253]
    # One bit, and one colour that is transparent.
    assert read_image(encoded(np.asarray([[0, 255]], np.uint8), mode="1"), 1).ravel().tolist() == [
        0, 255
    ]  # fmt: skip
    keyed = encoded(Image.new("RGB", (1, 1), (9, 8, 7)), transparency=(9, 8, 7))
    assert read_image(keyed).tolist() == [[[255] * 3]]


def test_a_palette_is_looked_up_and_its_transparency_shows_the_background():
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    assert read_image(encoded(image)).tolist() == [[[255, 0, 0], [0, 0, 255]]]
    data = encoded(image, transparency=bytes([0, 255]))
    assert read_image(data).tolist() == [[[255, 255, 255], [0, 0, 255]]]
    assert read_image(data, background="#102030").tolist() == [[[16, 32, 48], [0, 0, 255]]]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_composed_on_the_named_background(mode):
    image = Image.new(mode, (1, 1), (100, 100, 100, 51) if mode == "RGBA" else (100, 51))
    for name, level in (("white", 255), ("black", 0)):
        expected = round(0.2 * 100 + 0.8 * level)
        assert read_image(encoded(image), background=name).tolist() == [[[expected] * 3]]


@pytest.mark.parametrize(
    "orientation, upright",
    [
        (1, RGB),
        (2, RGB[:, ::-1]),
        (3, RGB[::-1, ::-1]),
        (6, np.rot90(RGB, -1)),
        (8, np.rot90(RGB)),
    ],
)
def test_the_exif_rotation_is_applied(orientation, upright):
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(read_image(encoded(RGB, exif=exif)), upright)


def test_a_size_keeps_proportions_and_cuts_to_the_middle():
    # Left third red, middle green, right blue: a square of a wide image is its middle.
    thirds = np.zeros((30, 90, 3), np.uint8)
    for i in range(3):
        thirds[:, 30 * i : 30 * i + 30, i] = 255
    found = read_image(encoded(thirds), size=(10, 10))
    assert found.shape == (10, 10, 3) and (found[:, 1:-1] == [0, 255, 0]).all()
    constant = read_image(encoded(np.full((8, 8, 3), 77, np.uint8)), size=(5, 3))
    assert (constant == 77).all() and constant.shape == (5, 3, 3)
    # A line of pixels.
    line = RGB[:1]
    np.testing.assert_array_equal(read_image(encoded(line)), line)
    np.testing.assert_array_equal(read_image(encoded(line.swapaxes(0, 1))), line.swapaxes(0, 1))
    assert read_image(encoded(line), size=(4, 6)).shape == (4, 6, 3)
    # A large JPEG read small is what it is read whole.
    y, x = np.mgrid[:64, :64]
    smooth = np.stack([2 * x, 2 * y, x + y], -1).astype(np.uint8)
    data = encoded(smooth, "JPEG", quality=95)
    whole = Image.fromarray(read_image(data)).resize((8, 8), Image.Resampling.BICUBIC)
    assert np.abs(read_image(data, size=(8, 8)).astype(int) - np.asarray(whole)).max() <= 4


def test_arrays_take_the_same_form():
    grey = RGB[..., 0]
    for array in (grey, grey[..., None]):
        np.testing.assert_array_equal(from_array(array, 1), grey[..., None])
        np.testing.assert_array_equal(from_array(array, 3), np.stack([grey] * 3, -1))
    np.testing.assert_array_equal(from_array(RGB, 3, (3, 5)), RGB)
    np.testing.assert_array_equal(from_array(RGB, 1), read_image(encoded(RGB), 1))
    np.testing.assert_array_equal(from_array(RGB, 3, (2, 2)), read_image(encoded(RGB), size=(2, 2)))


def bomb():
    """A PNG of 74 bytes that says it has 400 million pixels."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 9))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


NOISE = np.random.default_rng(1).integers(256, size=(64, 64, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "name, data, words",
    [
        ("cut.png", encoded(NOISE)[:2000], "cannot be read as an image"),
        ("cut.jpg", encoded(NOISE, "JPEG")[:1500], "truncated"),
        ("cut.webp", encoded(NOISE, "WEBP")[:1500], "cannot be read as an image"),
        ("nothing.png", b"", "is empty"),
        ("text.jpg", b"these are words, no pixels", "none of PNG, JPEG"),
        ("bomb.png", bomb(), "pixel"),
        ("float.tiff", encoded(Image.new("F", (2, 2))  , "TIFF"), "pixels of kind F"),
        ("page.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "none of PNG"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused_in_one_line_that_names_the_file(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(LabError, match=f"{name}.*{words}"):
        read_image(tmp_path / name)
    with pytest.raises(LabError, match=f"^the image.*{words}"):
        read_image(data)


def test_a_missing_file_an_unknown_colour_and_too_many_pixels(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_PIXELS", 15)
    assert read_image(encoded(RGB)).shape == (3, 5, 3)
    monkeypatch.setattr(reading, "MAX_PIXELS", 14)
    with pytest.raises(LabError, match="5 x 3 pixels are over the limit of 14"):
        read_image(encoded(RGB))
    with pytest.raises(LabError, match=r"no\.png: no such file"):
        read_image(tmp_path / "no.png")
    with pytest.raises(LabError, match='background = "whit" is no colour'):
        reading.check_colour("whit")
