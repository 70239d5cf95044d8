"""What a sweep says beside its paper: each row's difference to its base, ours and the published.

Ours are paired by seed: the difference is the mean over the seeds that both rows have, and its
standard error the sample deviation of the differences over the root of their number. A difference
of less than two standard errors is none.
"""

import math
import statistics
from typing import Any, NamedTuple

from transformer_lab.sweeps.results import Row, Table
from transformer_lab.training.config import lower_is_better


class Verdict(NamedTuple):
    """A row beside its base. NaN: no base, or too few seeds for an error; None: not published."""

    row: str
    base: str
    score: str  # the score of the test split that is compared
    difference: float
    error: float
    seeds: int
    column: str  # the paper's column beside it; "" if there is none
    published: float | None
    published_difference: float | None
    says: str


def verdicts(table: Table) -> list[Verdict]:
    """A verdict on each row that has a base, and one for each other score that plan["also"] names.
    A row whose runs lack a score has no verdict on it."""
    rows, also = {row.name: row for row in table.rows}, table.plan["also"]
    bases = table.plan["base"].items()
    pairs = [(rows[name], rows[base]) for name, base in bases if {name, base} <= rows.keys()]
    found = (_verdict(table.plan, *pair, score) for pair in pairs for score in ("", *also))
    return [one for one in found if rows[one.row].numbers(f"test/{one.score}")]


def paired(row: Row, base: Row, key: str) -> tuple[float, float, int]:
    """The mean difference of a score, its standard error, and the number of seeds both rows have.

    Three seeds that differ by 1, 2 and 3 have a mean of 2 and an error of 0.577.
    """
    here, there = row.by_seed(key), base.by_seed(key)
    found = [here[seed] - there[seed] for seed in here if seed in there]
    if not found:
        return math.nan, math.nan, 0
    mean = statistics.fmean(found)
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan
    # Equal differences of scores that are fractions differ by rounding alone.
    return mean, 0.0 if error < 1e-9 * abs(mean) else error, len(found)


def _verdict(plan: dict[str, Any], row: Row, base: Row, score: str) -> Verdict:
    """On one score; without a name on the one that the paper's column is compared with."""
    paper = plan["paper"]
    figures, theirs = (paper["rows"].get(x.name, []) if paper else [] for x in (row, base))
    column, published, apart = "", None, None
    for name, figure, other in zip(paper.get("columns", []), figures, theirs, strict=False):
        compared = not score or plan["compares"].get(name) == score
        if compared and figure is not None and other is not None:
            column, published, apart = name, figure, figure - other
            break
    of_paper = plan["compares"].get(column, plan["metric"]) if column else plan["metric"]
    if score:  # where the paper has one, it is the same score as ours
        higher = theirs_higher = not lower_is_better(score)
    else:
        score, theirs_higher = of_paper, paper.get("higher_is_better", True)
        higher = plan["higher_is_better"] if score == plan["metric"] else theirs_higher
    difference, error, count = paired(row, base, f"test/{score}")
    ways = "better", "worse"
    if plan["higher_is_better"] is None:  # nothing is better, and a direction is that of the sign
        higher = theirs_higher = True
        ways = "more", "less"
    ours = difference if higher else -difference
    known = None if apart is None else apart if theirs_higher else -apart
    says = _says(ours, error, count, known, ways)
    facts = (score, difference, error, count, column, published, apart)
    return Verdict(row.name, base.name, *facts, says)


def _says(
    ours: float, error: float, seeds: int, published: float | None, ways: tuple[str, str]
) -> str:
    """The sentence; `ours` and `published` are differences, `ways` the words for those above and
    below 0."""
    if not math.isfinite(error):
        return f"not told by {seeds} seed{'' if seeds == 1 else 's'}"
    if abs(ours) < 2 * error or not ours:
        return "within noise"
    way = ways[ours < 0]
    if published is None:
        return way
    if not published:
        return f"{way}, published as equal"
    return f"{way}, {'same' if (ours > 0) == (published > 0) else 'other'} direction"
