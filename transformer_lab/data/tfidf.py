"""Baselines of text classification: the commonest class, and regression on word counts."""

import warnings
from collections.abc import Sequence

from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from transformer_lab.errors import LabError

STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # C, the inverse of the penalty
Rows = tuple[Sequence[str], Sequence[str]]  # texts and their classes


def late() -> warnings.catch_warnings:
    """A context in which a fit may end before it has converged without a warning: a baseline that
    is nearly as good as it can be will do."""
    return warnings.catch_warnings(action="ignore", category=ConvergenceWarning)


def majority(train: Rows) -> DummyClassifier:
    """A classifier that always gives the most frequent class, of equals the first by name."""
    return DummyClassifier(strategy="most_frequent").fit(*train)


def logistic(train: Rows, validation: Rows) -> tuple[Pipeline, float]:
    """Logistic regression on TF-IDF of words, punctuation and pairs of them, and its C.

    Of the C with the best validation accuracy, the smallest is chosen. Raises: LabError for fewer
    than two classes to train on, or no validation rows."""
    if len(set(train[1])) < 2 or not validation[0]:
        raise LabError("a classifier needs two classes to train on and rows of validation")
    weigh = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    known, held = weigh.fit_transform(train[0]), weigh.transform(validation[0])
    with late():
        fits = [LogisticRegression(C=c, max_iter=1000).fit(known, train[1]) for c in STRENGTHS]
    best = max(fits, key=lambda fit: fit.score(held, validation[1]))  # of equals the first
    return make_pipeline(weigh, best), best.C
