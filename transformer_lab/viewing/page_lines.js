// Lines between tokens: those are drawn that are seen, for all of them take long at 512 tokens.

const lineStep = () => Math.max(square(), longest() > 64 ? 12 : 20);
const lineTop = () => lineStep() === square() ? margin : 0; // then its rows are beside the map's

let painted = [0, 0], paint = null; // from which pixel to which they are drawn, and by what

function drawLines() {
  byId("lines-figure").hidden = !!map.seconds; // thousands of frames in one column show nothing
  if (map.seconds) return;
  const step = lineStep(), top = lineTop(), small = innerWidth < 600, pen = Math.min(13, step);
  const edge = margin || 150, x = small ? [85, 205] : [edge, edge + 200], y = at => top + (at + .5) * step;
  const wide = small ? 290 : 2 * edge + 200, context = canvas("lines", wide, top + longest() * step);
  const shown = strongest(MOST_LINES).reverse(), width = map.columns.length; // the strongest on top
  const place = new Map(rows.map((t, i) => [t, i])), end = new Map(columns.map((t, i) => [t, i]));
  const hues = several ? heads().map(h => HUES[h % HUES.length]) : [dark.matches ? PALE : INK];
  const colours = hues.map(hue => `rgb(${hue})`), [text, mark] = ["--text", "--mark"].map(colour);
  byId("left-out").textContent =
    shown.length === MOST_LINES ? `The strongest ${MOST_LINES} are drawn.` : "";
  paint = (from, to) => { // the part between two pixels, since all of it takes long
    const seen = at => y(at) > from - pen && y(at) < to + pen;
    context.save();
    context.beginPath();
    context.rect(0, from, wide, to - from);
    context.clip();
    context.clearRect(0, from, wide, to - from);
    for (const [row, column] of shown) (several || [weights]).forEach((head, n) => {
      const aside = several ? 2 * n - several.length : 0;
      const ends = [y(place.get(row)) + aside, y(end.get(column)) + aside];
      if (Math.max(...ends) < from || Math.min(...ends) > to) return;
      context.strokeStyle = colours[n];
      context.globalAlpha = peak ? head[row * width + column] / peak : 0;
      context.beginPath();
      context.moveTo(x[0], ends[0]);
      context.lineTo(x[1], ends[1]);
      context.stroke();
    });
    context.globalAlpha = 1;
    context.font = `${pen}px system-ui, sans-serif`;
    context.textAlign = "right";
    rows.forEach((t, i) => {
      context.fillStyle = t === (lit >= 0 ? lit : state.row) ? mark : text;
      if (seen(i)) context.fillText(fit(map.rows[t], letters()), x[0] - 6, y(i));
    });
    context.textAlign = "left";
    context.fillStyle = text;
    columns.forEach((t, i) => {
      if (seen(i)) context.fillText(fit(map.columns[t], letters()), x[1] + 6, y(i));
    });
    context.restore();
  };
  painted = [0, 0];
  uncover();
}

function uncover() { // draws those lines that came into view, and some beyond
  const box = byId("lines").parentElement, from = Math.floor(box.scrollTop);
  const to = from + box.clientHeight + 1;
  const parts = from > painted[1] || to < painted[0] ? [[from, to + 100]]
    : [[from - 100, painted[0]], [painted[1], to + 100]];
  if (!paint || from >= painted[0] && to <= painted[1]) return;
  for (const [above, below] of parts) if (above < below && below > 0) paint(above, below);
  painted = [Math.min(...parts.flat()), Math.max(...parts.flat())];
}

const lineAt = event => rows[at(event.offsetY, lineTop(), lineStep())] ?? -1;
byId("lines").addEventListener("click", event => {
  const row = lineAt(event);
  choose({ row: row === state.row ? -1 : row, column: -1 });
});
byId("lines").parentElement.addEventListener("scroll", uncover);
byId("lines").addEventListener("mousemove", event => light(lineAt(event)));
byId("lines").addEventListener("mouseleave", () => light(-1));
function light(row) {
  if (row === lit) return;
  lit = row;
  drawLines();
}
