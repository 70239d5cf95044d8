"""A contact sheet of what was found."""

import numpy as np

from transformer_lab.viewing import sheet


def ink(picture, left, top, wide, high):
    """The number of pixels in a part of the sheet that are not white."""
    part = np.asarray(picture)[top : top + high, left : left + wide]
    return int((part < 255).any(axis=-1).sum())


def test_a_sheet_has_its_heading_and_each_image_above_its_caption():
    images = [np.full((96, 96, 3), 40 * i, np.uint8) for i in range(5)]
    captions = ["0.912 cat.png", "", "0.5 é", "0.1 ж", "x" * 99]
    made = sheet.draw("a smiling face", images, captions)
    assert made.size == (4 * 96, 32 + 2 * 112)
    assert 0 < ink(made, 0, 0, 384, 32) < 384 * 32
    for i, (caption, shade) in enumerate(zip(captions, range(0, 200, 40), strict=True)):
        left, top = i % 4 * 96, 32 + i // 4 * 112
        assert np.all(np.asarray(made)[top : top + 96, left : left + 96] == shade)
        assert bool(ink(made, left, top + 96, 96, 16)) == bool(caption)
    assert ink(made, 96, 32 + 112, 3 * 96, 112) == 0  # a cut caption stays below its image
    one = sheet.draw("a", images[:1], captions[:1])
    assert ink(one, 0, 0, 384, 32) < ink(made, 0, 0, 384, 32)
    assert sheet.font_of(10).getlength("é") != sheet.font_of(10).getlength("\uffff")
