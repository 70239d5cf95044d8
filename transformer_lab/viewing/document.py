"""The page kit of reports: one HTML file with tables, curves and texts, for any screen.

A page follows the reader's light or dark mode, fits a phone, needs neither server nor network, and
sorts a table by the column whose head is clicked."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

STYLE = """:root{color-scheme:light dark;--line:light-dark(#ccc,#555);--soft:light-dark(#555,#aaa)}
body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:75rem;padding:0 1rem;
color:light-dark(#111,#eee);background:light-dark(#fff,#16181c);overflow-wrap:anywhere}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:1.5rem 0 .4rem}pre{white-space:pre-wrap}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{border:1px solid var(--line);padding:.15rem .6rem;text-align:right;vertical-align:top}
td:first-child,th:first-child{text-align:left}th{cursor:pointer}
table.text td,table.text th{text-align:left}.scroll{overflow-x:auto}
img{max-width:100%;background:#fff}
.charts{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:1 1 20rem;max-width:34rem}
figcaption,.soft{color:var(--soft);font-size:.85rem}svg{width:100%;height:auto}
svg text{font-size:11px;fill:var(--soft)}svg .axis{stroke:var(--line)}
a{color:light-dark(#0645ad,#8ab4f8)}.c0{--c:light-dark(#1261a6,#6cb2f0)}
.c1{--c:light-dark(#b34700,#ffa657)}.c2{--c:light-dark(#1a7f37,#7ee08a)}
.c3{--c:light-dark(#8250df,#c9a6ff)}.c4{--c:light-dark(#9a6700,#e3c04f)}
.c5{--c:light-dark(#bf3989,#ff8fcf)}svg .mark{fill:var(--c)}
svg polyline{fill:none;stroke:var(--c);stroke-width:1.6}svg .band{fill:var(--c);opacity:.18}
svg text.name{fill:var(--c)}"""
SORT = """for(const head of document.querySelectorAll("th"))head.addEventListener("click",()=>{
const body=head.closest("table").tBodies[0],at=head.cellIndex;
const up=head.dataset.up=head.dataset.up==="1"?"":"1";
const key=row=>{const text=row.cells[at].textContent,n=parseFloat(text.replace(/,/g,""));
return isNaN(n)?text:n};
[...body.rows].sort((a,b)=>{const[x,y]=[key(a),key(b)];
return(typeof x===typeof y?(x>y)-(x<y):typeof x==="number"?-1:1)*(up?1:-1)})
.forEach(row=>body.append(row))})"""
COLOURS, WIDTH, HEIGHT = 6, 480, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 34  # pixels around a chart's curves
MOST = 400  # points of a curve that are drawn

Curve = tuple[Sequence[float], Sequence[float]]  # steps and values


class Page:
    """A whole HTML page, which a notebook shows in a frame of its own."""

    def __init__(self, text: str):
        self.text = text

    def save(self, path: str | Path) -> None:
        """Writes the page into a file."""
        Path(path).write_text(self.text, encoding="utf-8")

    def _repr_html_(self) -> str:
        style = "width:100%;height:36rem;border:0"
        return f'<iframe srcdoc="{html.escape(self.text)}" style="{style}"></iframe>'


def document(title: str, parts: Iterable[str], refresh: int = 0) -> str:
    """A whole page with a heading and these parts; `refresh` reloads it after so many seconds."""
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    name = html.escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{again}<title>{name}</title><style>{STYLE}</style></head><body>"
        f"<h1>{name}</h1>{''.join(parts)}<script>{SORT}</script></body></html>"
    )


def section(title: str, *parts: str) -> str:
    """A part of a page under its own heading."""
    return f"<h2>{html.escape(title)}</h2>{''.join(parts)}"


def note(text: str) -> str:
    """A line in small grey letters."""
    return f'<p class="soft">{html.escape(text)}</p>'


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "") -> str:
    """A table, which scrolls by itself where it is too wide; `kind` "text": cells read from the
    left."""
    line = lambda cells, tag: "".join(f"<{tag}>{html.escape(str(c))}</{tag}>" for c in cells)  # noqa: E731
    body = "".join(f"<tr>{line(cells, 'td')}</tr>" for cells in rows)
    head = f"<thead><tr>{line(header, 'th')}</tr></thead>"
    return f'<div class="scroll"><table class="{kind}">{head}<tbody>{body}</tbody></table></div>'


def charts(figures: Iterable[str]) -> str:
    """Charts beside each other, as many as fit."""
    return f'<div class="charts">{"".join(figures)}</div>'


def chart(
    title: str,
    curves: Mapping[str, Curve],
    marks: Sequence[tuple[float, float]] = (),
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
) -> str:
    """Curves over steps as an SVG picture. `marks` are points to circle, such as the best step;
    `bands` give curves a lower and an upper edge, such as the deviation over seeds."""
    bands = bands or {}
    curves = {name: _thinned(curve) for name, curve in curves.items()}
    values = [y for _, ys in curves.values() for y in ys] + [y for pair in bands.values()
              for edge in pair for y in edge if math.isfinite(y)]  # fmt: skip
    steps = [x for xs, _ in curves.values() for x in xs]
    if not values:
        return ""
    low, high = min(values), max(values)
    first, last = min(steps), max(steps)
    across, up = (last - first) or 1, (high - low) or 1
    x = lambda step: LEFT + (step - first) / across * (WIDTH - LEFT - RIGHT)  # noqa: E731
    y = lambda value: TOP + (high - value) / up * (HEIGHT - TOP - BOTTOM)  # noqa: E731
    points = lambda xs, ys: " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(xs, ys, strict=True))  # noqa: E731
    parts = []
    for share in (0, 0.5, 1):
        value, step = low + share * up, first + share * across
        parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" '
            f'y2="{y(value):.1f}"/><text x="{LEFT - 5}" y="{y(value) + 4:.1f}" '
            f'text-anchor="end">{value:.4g}</text><text x="{x(step):.1f}" y="{HEIGHT - 18}" '
            f'text-anchor="{("start", "middle", "end")[int(2 * share)]}">{step:,.0f}</text>'
        )
    beside = LEFT
    for i, (name, (xs, ys)) in enumerate(curves.items()):
        parts.append(f'<g class="c{i % COLOURS}">')
        if name in bands:
            lower, upper = bands[name]
            edge = f"{points(xs, upper)} {points(xs[::-1], lower[::-1])}"
            parts.append(f'<polygon class="band" points="{edge}"/>')
        parts.append(f'<polyline points="{points(xs, ys)}"/>')
        if len(xs) == 1:
            parts.append(f'<circle class="mark" cx="{x(xs[0])}" cy="{y(ys[0])}" r="2.5"/>')
        if len(curves) > 1 and beside < WIDTH - 60:
            shown = name if len(name) <= 24 else f"{name[:23]}…"
            text = f'<text class="name" x="{beside}" y="{HEIGHT - 3}">{html.escape(shown)}</text>'
            parts.append(text)
            beside += 7 * len(shown) + 14
        parts.append("</g>")
    for step, value in marks:
        parts.append(f'<circle class="mark c1" cx="{x(step):.1f}" cy="{y(value):.1f}" r="4"/>')
    name = html.escape(title)
    return (
        f"<figure><figcaption>{name}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _thinned(curve: Curve) -> tuple[list[float], list[float]]:
    """The finite points of a curve, at most 400 of them, evenly chosen, with the last."""
    both = [(a, b) for a, b in zip(*curve, strict=True) if math.isfinite(b)]
    by = -(-len(both) // MOST) or 1
    both = both[::-by][::-1]
    return [a for a, _ in both], [b for _, b in both]
