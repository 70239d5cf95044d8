"""Scores of whole splits: classes, values, tags, and answers by SQuAD's rules.

The functions take the references first; LabError if lengths differ or are 0."""

import importlib
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from types import ModuleType

import numpy as np
from jaxtyping import Float

from transformer_lab.errors import LabError

_PACKAGES = {"sklearn": "scikit-learn", "scipy": "scipy", "seqeval": "seqeval",
             "rouge_score": "rouge-score"}  # fmt: skip
WORDS = (4, 8, 16)  # words of a source that divide the ranges of BLEU by length
_MARKED = re.compile("[BILOUSE]-.")
_AS_IOBES = {"U-": "S-", "L-": "E-"}
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def accuracy(gold: Sequence, predicted: Sequence) -> float:
    """The share of predictions that equal their reference."""
    _same_length(gold, predicted)
    return sum(g == p for g, p in zip(gold, predicted, strict=True)) / len(gold)


def f1(gold: Sequence, predicted: Sequence, positive: object = None) -> float:
    """F1 of the class `positive`, or if None the unweighted mean of all classes' F1 (macro).

    A class whose precision and recall are both 0 counts 0."""
    _same_length(gold, predicted)
    how = {"labels": None if positive is None else [positive], "average": "macro"}
    return float(_package("sklearn.metrics").f1_score(gold, predicted, zero_division=0.0, **how))


def matthews(gold: Sequence, predicted: Sequence) -> float:
    """Matthews' correlation coefficient, 0 if one of the lists holds a single class."""
    _same_length(gold, predicted)
    if len({*gold, *predicted}) == 1:  # scikit-learn warns, and gives 0 as well
        return 0.0
    return float(_package("sklearn.metrics").matthews_corrcoef(gold, predicted))


def pearson(gold: Sequence[float], predicted: Sequence[float], kind: str = "pearsonr") -> float:
    """Pearson's correlation, taken as 0 if one list is constant, where it is undefined."""
    _same_length(gold, predicted)
    stats = _package("scipy.stats")
    constant = len(set(gold)) == 1 or len(set(predicted)) == 1
    return 0.0 if constant else float(getattr(stats, kind)(gold, predicted)[0])


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Spearman's rank correlation, taken as 0 if one list is constant, where it is undefined."""
    return pearson(gold, predicted, "spearmanr")


def tag_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """How tags mark entities: BILOU, IOBES, IOB2, IOB1 or IO; "" if they mark none.

    Without a tag B-, all tags but O must have a mark. In IOB1 an entity may begin with I-."""
    kinds, begins = set(), False
    for tags in sentences:
        kinds.update(tags)
        for before, tag in zip(["O", *tags], tags, strict=False):
            begins |= tag[:2] == "I-" and before[1:] != tag[1:]
    marks = {kind[0] for kind in kinds if _MARKED.match(kind)}
    if "B" not in marks and (not marks or not all(map(_MARKED.match, kinds - {"O"}))):
        return ""
    if marks & set("UL"):
        return "BILOU"
    if marks & set("SE"):
        return "IOBES"
    return ("IOB1" if begins else "IOB2") if "B" in marks else "IO"


def span_f1(gold: list[list[str]], predicted: list[list[str]]) -> float:
    """Micro F1 of whole entities, as conlleval and seqeval count them, in the scheme of the tags.

    seqeval knows the marks of IOBES; those of BILOU mean the same by other names.
    """
    _same_length(gold, predicted)
    for i, (tags, others) in enumerate(zip(gold, predicted, strict=True)):
        if len(tags) != len(others):
            raise LabError(f"sentence {i}: {len(tags)} words have {len(others)} predicted tags")
    metrics = _package("seqeval.metrics")
    if tag_scheme([*gold, *predicted]) == "BILOU":
        gold, predicted = (
            [[_AS_IOBES.get(tag[:2], tag[:2]) + tag[2:] for tag in tags] for tags in side]
            for side in (gold, predicted)
        )
    return float(metrics.f1_score(gold, predicted, average="micro", zero_division=0))


def normalise_answer(text: str) -> str:
    """An answer in lower case without punctuation, articles and extra space (SQuAD 1.1)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answers: Sequence[str], predicted: str) -> float:
    """1 if the prediction equals an answer after normalising; see `answer_f1`."""
    return float(normalise_answer(predicted) in map(normalise_answer, _possible(answers)))


def answer_f1(answers: Sequence[str], predicted: str) -> float:
    """F1 of the words shared with the best answer (SQuAD 2.0's evaluation script).

    Answers that normalise to nothing are ignored; if none is left, the right answer is empty.
    Against an empty side the score is 1 if both are empty, else 0."""
    return max(_words_f1(answer, predicted) for answer in _possible(answers))


def squad(answers: Sequence[Sequence[str]], predicted: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 in per cent over all questions; "" predicts that there is no answer."""
    _same_length(answers, predicted)
    pairs = list(zip(answers, predicted, strict=True))
    exact, shared = (sum(score(*pair) for pair in pairs) for score in (exact_match, answer_f1))
    return 100.0 * exact / len(pairs), 100.0 * shared / len(pairs)


def squad_parts(answers: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """`squad` of the questions with an answer and of those without; {} if all have one.

    For a question without an answer, exact match and F1 are equal, so that one is given."""
    both: dict[bool, list] = {True: [], False: []}
    for possible, text in zip(answers, predicted, strict=True):
        both[bool(possible)].append((possible, text))
    if not both[False]:
        return {}
    found = {"no_answer_exact": squad(*zip(*both[False], strict=True))[0]}
    if both[True]:
        exact, f1 = squad(*zip(*both[True], strict=True))
        found |= {"has_answer_exact": exact, "has_answer_f1": f1}
    return found


def rouge(references: Sequence[str], outputs: Sequence[str]) -> dict[str, float]:
    """Mean F1 of ROUGE-1, 2 and L (Lin 2004) in per cent, words stemmed, by rouge-score."""
    _same_length(references, outputs)
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = _package("rouge_score.rouge_scorer").RougeScorer(kinds, True)
    rows = [scorer.score(*pair) for pair in zip(references, outputs, strict=True)]
    return {kind: 100.0 * sum(r[kind].fmeasure for r in rows) / len(rows) for kind in kinds}


def corpus_scores(outputs: list[str], references: list[str]) -> tuple[dict[str, float], str]:
    """BLEU and chrF of detokenised text by sacrebleu (Post 2018), and BLEU's signature.

    References are passed on as they are, without normalisation."""
    import sacrebleu

    if len(outputs) != len(references):
        raise LabError(f"{len(outputs)} translations but {len(references)} references")
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    values = {
        "bleu": bleu.corpus_score(outputs, [references]).score,
        "chrf": chrf.corpus_score(outputs, [references]).score,
    }
    return values, str(bleu.get_signature())


def bleu_by_length(
    sources: list[str], outputs: list[str], references: list[str]
) -> dict[str, float]:
    """BLEU by ranges of the number of words in the source (Bahdanau 2015, figure 2)."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for source, *pair in zip(sources, outputs, references, strict=True):
        end = next((n for n in WORDS if len(source.split()) <= n), None)
        rows.setdefault(f"to_{end}" if end else f"over_{WORDS[-1]}", []).append(tuple(pair))
    return {
        f"bleu_words_{name}": corpus_scores(*map(list, zip(*pairs, strict=True)))[0]["bleu"]
        for name, pairs in sorted(rows.items())
    }


def _possible(answers: Sequence[str]) -> list[str]:
    return [answer for answer in answers if normalise_answer(answer)] or [""]


def _words_f1(answer: str, predicted: str) -> float:
    gold, words = normalise_answer(answer).split(), normalise_answer(predicted).split()
    if not gold or not words:
        return float(gold == words)
    shared = (Counter(gold) & Counter(words)).total()
    return 2 * shared / (len(gold) + len(words))


def _same_length(gold: Sequence, predicted: Sequence) -> None:
    if len(gold) != len(predicted) or len(gold) == 0:
        raise LabError(f"{len(gold)} references and {len(predicted)} predictions: nothing to score")


def _package(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = _PACKAGES[module.partition(".")[0]]
        raise LabError(f"this score needs {name}: pip install {name}") from error


def ranking(
    scores: Float[np.ndarray, "queries documents"], right: Sequence[Sequence[int]], prefix: str = ""
) -> dict[str, float]:
    """Scores of retrieval, given each query's right documents; of equal scores the first wins.

    `recall_1` and `recall_10` are the shares of queries with a right document among the first 1
    and 10, `mrr` is the mean of 1 / rank of the first right one, and `ndcg_10` the discounted gain
    1 / log2(rank + 1) of all right ones among the first 10, relative to the largest possible."""
    values = []
    for row, own in zip(scores, right, strict=True):
        ranks = np.flatnonzero(np.isin(np.argsort(-row, kind="stable"), own)) + 1
        gain = (1 / np.log2(ranks[ranks <= 10] + 1)).sum()
        best = (1 / np.log2(np.arange(2, 2 + min(len(ranks), 10)))).sum()
        values.append((ranks[0] <= 1, ranks[0] <= 10, 1 / ranks[0], gain / best))
    names = ("recall_1", "recall_10", "mrr", "ndcg_10")
    means = np.mean(values, axis=0)
    return {prefix + name: float(mean) for name, mean in zip(names, means, strict=True)}
