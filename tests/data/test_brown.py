import pytest

from transformer_lab.data.sources import brown
from transformer_lab.errors import LabError

CA02 = """

	The/at jury/nn said/vbd ``/`` no/at ''/'' ./.
It/pps didn't/dod* end/vb ;/. ;/.


'/' Met/np-hl closes/vbz-hl '/'
Later/rbr ,/, and/or/cc 1/4''/nn (/( see/vb p./nn )/) ,/, he/pps left/vbd ./.


	Who/wps ?/. ?/.
"""


def corpus(folder, **files):
    (folder / "package").mkdir()
    for name, content in files.items():
        (folder / "package" / name.replace("cats", "cats.txt")).write_text(content, "ascii")
    return folder


def test_documents_have_genres_tagged_sentences_and_paragraphs(tmp_path):
    folder = corpus(tmp_path, cats="cb01 editorial\nca02 news\n\n", ca02=CA02, cb01="\tA/at ./.\n")
    documents = brown.read(folder)
    assert [(d.name, d.genre) for d in documents] == [("ca02", "news"), ("cb01", "editorial")]
    news = documents[0]
    assert list(map(len, news.sentences)) == [7, 5, 4, 12, 3]
    assert news.sentences[1][1:4] == [("didn't", "dod*"), ("end", "vb"), (";", ".")]
    assert news.sentences[3][2:4] == [("and/or", "cc"), ("1/4''", "nn")]
    assert news.paragraphs == (0, 2, 3, 4)  # text follows the headline without a blank line
    assert brown.text(news).split("\n") == [
        'The jury said "no". It didn\'t end;',
        "'Met closes'",
        'Later, and/or 1/4" (see p.), he left.',
        "Who?",
    ]
    assert brown.text(documents[1]) == "A."


@pytest.mark.parametrize(
    "words, plain",
    [
        ("`` Go ! ! '' he cried : `` it 's -- Jr. . ''", '"Go!" he cried: "it \'s -- Jr."'),
        ("`` ' All is lost , I say . ' '' .", "\"'All is lost, I say.'\"."),
        ("( [ a ] , 'tis .5 : :35.3 )", "([a], 'tis .5: :35.3)"),
        ("said : ' I am here . We", "said: 'I am here. We"),
        ("the end ' '' .", "the end'\"."),
        ("'' , and ``", '", and "'),
        ("etc. ) . No . No .", "etc.). No. No."),
    ],
)
def test_words_become_plain_english(words, plain):
    assert brown.detokenise(words.split()) == plain


def test_what_is_missing_from_the_corpus_is_named(tmp_path):
    with pytest.raises(LabError, match="no cats.txt of the Brown corpus in"):
        brown.read(tmp_path)
    folder = corpus(tmp_path, cats="ca02 news\nca03\n", ca02=CA02)
    for token in ("word", "/nn", "word/"):
        (folder / "package/cats.txt").write_text("ca02 news")
        (folder / "package/ca02").write_text(f"{CA02}\nA/at {token} ./.\n")
        with pytest.raises(LabError, match=f"ca02:13: expected word/tag, found {token}"):
            brown.read(folder)
    (folder / "package/cats.txt").write_text("ca02 news\nca03\n")
    with pytest.raises(LabError, match=r"cats.txt:2: expected a document and its genre"):
        brown.read(folder)
    (folder / "package/cats.txt").write_text("ca04 news")
    with pytest.raises(LabError, match="cannot read .*ca04"):
        brown.read(folder)
