"""Passages of a folder of texts, and the index in which they are searched."""

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_lab.data.bm25 import BM25
from transformer_lab.data.formats.lines import lines, visible
from transformer_lab.data.nearest import nearest
from transformer_lab.errors import LabError, check_file

KINDS = (".txt", ".md", ".rst", ".tex")
WORDS = 120  # of a passage, after which the next paragraph begins another one


@dataclass(frozen=True)
class Passage:
    """A piece of a file of texts, with the number of its first line; or an image file."""

    file: str
    line: int
    text: str


def read_folder(folder: Path) -> list[Passage]:
    """The texts of a folder and its folders, cut at blank lines into passages of about 120 words.

    Raises: LabError if no text lies there, or with file and line for one that is not UTF-8."""
    files = [file for file in visible(folder, kinds=KINDS) if file.suffix in KINDS]
    found = [passage for file in files for passage in _passages(file)]
    if not found:
        raise LabError(f"{folder}: no text lies there, in files that end in {', '.join(KINDS)}")
    return found


def _passages(file: Path):
    first, kept, size, blank = 1, [], 0, False
    for number, (_, line) in enumerate(lines(file), 1):
        # A paragraph that is too long is cut at the end of a line.
        if kept and line.strip() and (size >= WORDS if blank else size >= 2 * WORDS):
            yield Passage(str(file), first, " ".join(kept))
            kept, size = [], 0
        blank = not line.strip()
        if not blank:
            first = first if kept else number
            kept.append(line.strip())
            size += len(line.split())
    if kept:
        yield Passage(str(file), first, " ".join(kept))


@dataclass(frozen=True)
class Index:
    """Passages, what made their vectors, and the vectors of length 1 [n, d], or none of both."""

    passages: list[Passage]
    source: str = ""
    vectors: Float[np.ndarray, "n d"] | None = None

    def save(self, path: Path) -> None:
        """Writes the passages, their source and the vectors as an .npz file, which `load` reads."""
        said = {"source": self.source, "passages": [asdict(p) for p in self.passages]}
        arrays = {"said": np.frombuffer(json.dumps(said).encode(), np.uint8)}
        if self.vectors is not None:
            arrays["vectors"] = self.vectors
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> "Index":
        """The index in a file. Raises: LabError if it is none."""
        try:
            with np.load(check_file(path), allow_pickle=False) as arrays:
                said = json.loads(arrays["said"].tobytes())
                vectors = arrays.get("vectors")
            passages = [Passage(**row) for row in said["passages"]]
            return cls(passages, said["source"], vectors)
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise LabError(f"{path} is no index: make one by `index --folder=DIR`") from error

    def search(
        self, query: str, count: int, vector: Callable[[str], Any] | None = None
    ) -> list[tuple[float, Passage]]:
        """The best passages for a query with their scores: cosines if `vector` maps the query to
        its vector, else BM25's scores, of which those of 0 are left out."""
        if vector is None:
            scores = BM25([passage.text for passage in self.passages]).scores([query])[0]
            best: Sequence[int] = [i for i in np.argsort(-scores, kind="stable") if scores[i] > 0]
            return [(float(scores[i]), self.passages[i]) for i in best[:count]]
        near, best = nearest(np.asarray(vector(query))[None], self.vectors, count)
        return [(float(s), self.passages[i]) for s, i in zip(near[0], best[0], strict=True)]
