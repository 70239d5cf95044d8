import itertools
import struct
import sys
import zlib
from collections import Counter
from pathlib import Path

import polib
import pytest

from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.data.sources import bible, catalogues, libreoffice_help
from transformer_lab.errors import LabError

SMALL = {"validation_size": 1, "test_size": 1}


def entry(source, target, **more):
    return polib.POEntry(msgid=source, msgstr=target, **more)


def save(file, *entries):
    catalogue = polib.POFile()
    catalogue.metadata = {"Content-Type": "text/plain; charset=utf-8"}
    catalogue.extend(entries)
    file.parent.mkdir(parents=True, exist_ok=True)
    catalogue.save_as_mofile(str(file)) if file.suffix == ".mo" else catalogue.save(str(file))


def catalogue_folder(tmp_path):
    plural = polib.POEntry(
        msgid="%d file", msgid_plural="%d files", msgstr_plural={0: "%d fichier", 1: "%d fichiers"}
    )
    save(
        tmp_path / "a/locale/fr/LC_MESSAGES/django.po",
        entry("Save\n  the file", "Enregistrer  le\nfichier"),
        entry("Close", "Fermer"),
        entry("Old", "Vieux", obsolete=True),
        entry("Guess", "Deviné", flags=["fuzzy"]),
        entry("Not yet", ""),
        plural,
    )
    save(tmp_path / "a/locale/fr/LC_MESSAGES/django.mo", entry("Compiled", "a .po stands beside"))
    save(tmp_path / "b/fr_FR/only.mo", entry("Close", "Clore"), entry("Open", "Ouvrir"))
    save(tmp_path / "c/fr_FR/more.po", entry("Close", "Fermer"), entry("Open", "Ouverture"))
    save(tmp_path / "c/fr_CA/more.po", entry("Canada", "Canada"))
    save(tmp_path / "c/de/more.po", entry("Close", "Schließen"), entry("Open", "Öffnen"))
    return tmp_path


def test_catalogues_give_one_target_a_source(tmp_path):
    report = Counter()
    rows = catalogues.read([catalogue_folder(tmp_path)], "en", "fr", report)
    assert [item.row for item in rows] == [
        ("%d file", "%d fichier"),
        ("%d files", "%d fichiers"),
        ("Close", "Fermer"),  # two of three say so
        ("Open", "Ouverture"),  # one each: the first in order
        ("Save the file", "Enregistrer le fichier"),
    ]
    assert report == {"unclear": 2, "empty": 1, "duplicate": 3}


def test_catalogues_swap_and_read_other_languages(tmp_path):
    folder = catalogue_folder(tmp_path)
    french = {item.row for item in catalogues.read([folder], "fr", "en", Counter())}
    assert {("Fermer", "Close"), ("Clore", "Close"), ("Ouvrir", "Open")} < french
    german = catalogues.read([folder], "en", "de", Counter())
    assert [item.row for item in german] == [("Close", "Schließen"), ("Open", "Öffnen")]
    with pytest.raises(LabError, match="no .po or .mo file below a folder pt"):
        catalogues.read([folder], "en", "pt", Counter())
    with pytest.raises(LabError, match="not de-fr"):
        catalogues.read([folder], "de", "fr", Counter())
    (folder / "c/fr_FR/bad.po").write_bytes(b'msgid "caf\xe9"\nmsgstr "caf\xe9"\n')
    with pytest.raises(LabError, match=r"bad\.po: not a UTF-8 gettext catalogue"):
        load_pairs(PairsConfig(path=str(folder)))


def test_the_order_of_files_on_disk_does_not_matter(tmp_path, monkeypatch):
    folder = catalogue_folder(tmp_path / "po")
    root = help_folder(tmp_path / "help")
    configs = [
        PairsConfig(path=str(folder), **SMALL),
        PairsConfig(source="libreoffice_help", path=str(root), **SMALL),
    ]
    before = [load_pairs(config).fingerprint() for config in configs]
    rglob = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: sorted(rglob(self, pattern))[::-1])
    assert [load_pairs(config).fingerprint() for config in configs] == before


def help_page(folder, language, page, blocks):
    file = folder / "usr/share/libreoffice/help" / language / "text" / page
    file.parent.mkdir(parents=True, exist_ok=True)
    body = "".join(f'<p id="{name}" class="x" dir="auto">{inside}</p>\n' for name, inside in blocks)
    file.write_text(f"<html><body><p id='bm_module'>No.</p>{body}</body></html>", "utf-8")


MAC = '<span hidden="true" id="MAC1" class="MAC"><span class="keycode">Command</span></span>'


def help_folder(tmp_path):
    english = [
        ("par_id1", f'Press <span class="s">{MAC}<span id="d">Ctrl</span></span>+F. Go on!'),
        ("par_id2", "One &amp; two. Three."),
        ("hd_id3", "A heading"),
        ("par_id4", "Never translated."),
        ("par_id5", "Only in English."),
        ("par_id6", 'In <span class="CALC">Calc</span><span class="WRITER">Writer</span>.'),
    ]
    french = [
        ("par_id1", f'Appuyez sur <span class="s">{MAC}<span>Ctrl</span></span>+F.<br>Continuez !'),
        ("par_id2", "Un et deux et trois."),
        ("hd_id3", "Un titre"),
        ("par_id4", "Never translated."),
        ("par_id6", 'Dans <span class="CALC">Calc</span><span class="WRITER">Writer</span>.'),
    ]
    help_page(tmp_path, "en-US", "swriter/a.html", english)
    help_page(tmp_path, "fr", "swriter/a.html", french)
    for n in range(4):
        pages = {"en-US": (f"Number {n}.", "Go on!"), "fr": (f"Nombre {n}.", f"Va {n} !")}
        for language, (one, two) in pages.items():
            help_page(tmp_path, language, f"b{n}.html", [("par_id1", one), ("par_id2", two)])
    help_page(tmp_path, "en-US", "untranslated.html", [("par_id1", "Alone.")])
    return tmp_path


def test_help_pairs_full_sentences_of_the_same_paragraph(tmp_path):
    report = Counter()
    rows = libreoffice_help.read([help_folder(tmp_path)], "en", "fr", report)
    assert [item.row for item in rows if item.group == "swriter/a.html"] == [
        ("Press Ctrl+F.", "Appuyez sur Ctrl+F."),
        ("Go on!", "Continuez !"),
    ]
    assert [row.group for row in rows if row.row[0] == "Number 2."] == ["b2.html"]
    # Two sentences face one, and one has a variant for each program.
    assert report == {"unclear": 3, "fragment": 1, "untranslated": 1}
    with pytest.raises(LabError, match="no folder de/text"):
        libreoffice_help.read([tmp_path], "en", "de", Counter())


def test_help_splits_by_page_and_by_source(tmp_path):
    config = PairsConfig(
        source="libreoffice_help", path=str(help_folder(tmp_path)), **SMALL, split_seed=1
    )
    splits = load_pairs(config)
    held = [*splits.validation, *splits.test]
    # "Go on!" stands on every page, so it can be held out by no page.
    assert len(held) == 2 and "Go on!" not in dict(held)
    assert len(splits.train) + len(held) + splits.report["source_in_another_split"] == 10
    assert splits.report["source_in_another_split"] == 2


def sword_module(root, name, verses):
    """A zText module with verses {("ot", index): OSIS text} in one block a testament."""
    folder = root / "modules/texts/ztext" / name
    folder.mkdir(parents=True)
    (root / "mods.d").mkdir(exist_ok=True)
    settings = {"DataPath": f"./modules/texts/ztext/{name}/", "ModDrv": "zText"}
    settings |= {"SourceType": "OSIS", "Encoding": "UTF-8", "CompressType": "ZIP"}
    settings |= {"BlockType": "BOOK", "Versification": "KJV"}
    lines = [f"[{name}]"] + [f"{k}={v}" for k, v in settings.items()]
    (root / f"mods.d/{name}.conf").write_text("\n".join(lines) + "\n")
    for testament in ("ot", "nt"):
        texts = {i: text.encode() for (t, i), text in verses.items() if t == testament}
        block, records = b"", []
        for i in range(max(texts, default=0) + 1):
            records.append(struct.pack("<IIH", 0, len(block), len(texts.get(i, b""))))
            block += texts.get(i, b"")
        packed = zlib.compress(block)
        (folder / f"{testament}.bzv").write_bytes(b"".join(records))
        (folder / f"{testament}.bzs").write_bytes(struct.pack("<III", 0, len(packed), len(block)))
        (folder / f"{testament}.bzz").write_bytes(packed)


def test_bible_verses_are_joined_on_chapter_and_verse_and_a_chapter_is_a_document(tmp_path):
    pytest.importorskip("pysword")
    # In the King James numbering Genesis 1:1 has index 4, and Matthew 1:1 as well.
    english = {
        ("ot", 4): "God<note>Hebrew: <i>E</i></note><w>created</w> the heavens &amp; the earth.",
        ("ot", 5): '<title canonical="true">A Psalm.</title><title>Heading</title> The earth was.',
        ("ot", 6): "Only here.",
        ("nt", 4): "The book<lb/> of the\n generation.",
    }
    spanish = {
        ("ot", 4): "Dios <w>crió</w> los cielos y la tierra.",
        ("ot", 5): "Salmo. La tierra estaba.",
        ("nt", 4): "Libro de la generación.",
    }
    sword_module(tmp_path, "engWEB2099eb", english)
    sword_module(tmp_path, "spaRV1909eb", spanish)
    report = Counter()
    rows = bible.read([tmp_path], "en", "es", report)
    assert [(item.group, *item.row) for item in rows] == [
        ("Gen 1", "God created the heavens & the earth.", "Dios crió los cielos y la tierra."),
        ("Gen 1", "A Psalm. The earth was.", "Salmo. La tierra estaba."),
        ("Matt 1", "The book of the generation.", "Libro de la generación."),
    ]
    assert report == {"unclear": 0}
    with pytest.raises(LabError, match="no SWORD module mods.d/engKJV"):
        bible.read([tmp_path], "kjv", "es", Counter())
    config = DocumentsConfig("bible", str(tmp_path), validation_share=0.0, test_share=0.0)
    assert load_documents(config).train == [
        "God created the heavens & the earth.\nA Psalm. The earth was.\nOnly here.",
        "The book of the generation.",
    ]


def test_the_bible_without_pysword_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pysword.modules", None)
    with pytest.raises(LabError, match=r"pip install 'transformer_lab\[bible\]'"):
        load_pairs(PairsConfig(source="bible", languages="en-es", path=str(tmp_path)))


def verses(seed, count=30):
    """Texts of very different lengths."""
    return ["x" * (20 + (seed * 37 + i * i * 53) % 190) for i in range(count)]


@pytest.mark.parametrize("move", [-5, -1, 1, 3])
@pytest.mark.parametrize("start", [0, 12])
def test_a_chapter_with_shifted_verse_numbers_is_found(move, start):
    chapters = {}
    for n in range(12):
        english = verses(n)
        noise = itertools.cycle([0.9, 1.1, 1.0, 1.05, 0.95])
        spanish = ["y" * round(1.2 * len(v) * f) for v, f in zip(english, noise, strict=False)]
        chapters[f"{n}"] = (english, spanish)
    assert bible.shifted(chapters) == []
    english, spanish = chapters["7"]
    rest = spanish[start:]
    moved = rest[move:] if move > 0 else ["y" * 40] * -move + rest
    chapters["7"] = (english, (spanish[:start] + moved + [""] * 9)[: len(english)])
    assert bible.shifted(chapters) == ["7"]


def test_a_help_document_is_a_page(tmp_path):
    page = [("hd_id1", "A &amp; B"), ("par_id2", "One. <b>Two</b>.")]
    help_page(tmp_path, "en-US", "a.html", page)
    help_page(tmp_path, "en-US", "sub/b.html", [("par_id1", "Three.")])
    shares = {"validation_share": 0.0, "test_share": 0.0}
    config = DocumentsConfig("libreoffice_help", str(tmp_path), **shares)
    assert load_documents(config).train == ["A & B\nOne. Two.", "Three."]
    (tmp_path / "empty").mkdir()
    with pytest.raises(LabError, match="no page below a folder en-US/text"):
        load_documents(DocumentsConfig("libreoffice_help", str(tmp_path / "empty")))
