"""Recordings with texts in several languages, from folders laid out like the packages."""

import pytest

from transformer_lab.data.fetch import cached
from transformer_lab.data.spoken import SpokenConfig, load_spoken
from transformer_lab.errors import LabError


def of(path, source, language, **more):
    shares = {"validation_share": 0.0, "test_share": 0.0, "path": str(path)}
    return load_spoken(SpokenConfig(source=source, language=language, **shares, **more))


def texts(found):
    return {row.name: row.text for row in found.train}


def write(path, content=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_dialogue_is_what_the_script_says_of_each_recording(tmp_path):
    lines = (
        'dialogId("a", "font_big", "One.")\ndialogStr("Jedna.")\n\n'
        'dialogId("b",\n  "font_small",\n"Say \\"two\\".")\n-- aside\ndialogStr("lost")\n'
        'dialogId("c", "font_small", "C:\\\\GAME")\ndialogStr(\n"V  C:\\\\HRY")\n'
        'dialogId("d", "font_small", "Unheard.")\ndialogStr("x")\n'
        'dialogId("e", "font_poster", "A poster.")\ndialogStr("")\n'
    )
    write(tmp_path / "script" / "wreck" / "demo_dialogs_cs.lua", lines)
    write(tmp_path / "script" / "wreck" / "demo_dialogs_nl.lua", lines)
    for name in "abce":
        write(tmp_path / "sound" / "wreck" / "cs" / f"{name}.ogg")
    found = of(tmp_path, "fillets", "cs")
    assert texts(found) == {"wreck/a": "Jedna.", "wreck/c": "V C:\\HRY"}
    assert found.report["no_recording"] == found.report["no_text"] == 1
    english = of(tmp_path, "fillets", "cs", translated=True)
    assert texts(english) == {"wreck/a": "One.", "wreck/c": "C:\\GAME", "wreck/e": "A poster."}
    with pytest.raises(LabError, match='Fish Fillets in "nl" below'):
        of(tmp_path, "fillets", "nl")
    with pytest.raises(LabError, match='language, for fillets: "en" is unknown'):
        of(tmp_path, "fillets", "en")


def test_a_stamp_is_described_in_each_language_that_has_a_recording_and_a_text(tmp_path):
    write(tmp_path / "cat.txt", "A cat.\n\nfr.utf8=Un  chat.\nde.utf8=Eine Katze.\n")
    write(tmp_path / "dog.txt", "A dog.\n")
    for name in ("cat_desc_fr", "cat_desc", "dog_desc", "dog_desc_fr", "bird_desc_fr"):
        write(tmp_path / f"{name}.ogg")
    found = of(tmp_path, "described_stamps", "fr")
    assert texts(found) == {"cat_desc_fr.ogg": "Un chat."} and found.report["no_text"] == 2
    english = {"cat_desc.ogg": "A cat.", "dog_desc.ogg": "A dog."}
    assert texts(of(tmp_path, "described_stamps", "en")) == english
    translated = texts(of(tmp_path, "described_stamps", "fr", translated=True))
    assert translated == {"cat_desc_fr.ogg": "A cat.", "dog_desc_fr.ogg": "A dog."}
    with pytest.raises(LabError, match='no description of a stamp in "ru"'):
        of(tmp_path, "described_stamps", "ru")


def test_prompts_have_no_translations(tmp_path):
    with pytest.raises(LabError, match="asterisk has no English translations"):
        of(tmp_path, "asterisk", "fr", translated=True)


@pytest.mark.parametrize(
    ("source", "language", "packages", "counts"),
    [
        ("asterisk", "en", "asterisk-core-sounds-en asterisk-core-sounds-en-wav", (551, 1)),
        ("asterisk", "fr", "asterisk-core-sounds-fr asterisk-core-sounds-fr-wav", (509, 7)),
        ("fillets", "cs", "fillets-ng-data fillets-ng-data-cs", (1_725, 277)),
        ("fillets", "nl", "fillets-ng-data fillets-ng-data-nl", (1_528, 452)),
        ("described_stamps", "fr", "tuxpaint-stamps-default", (927, 0)),
    ],
)
def test_the_real_sets_have_their_known_sizes(source, language, packages, counts):
    if not all(map(cached, packages.split())):
        pytest.skip(f"{packages}: not in the cache")
    found = of("", source, language)
    assert (len(found.train), found.report.get("no_recording", 0)) == counts
