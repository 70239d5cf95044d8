// Drawing. Canvases, because a page with an element a weight would not move at 512 tokens.

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name);

function canvas(id, width, height) {
  const element = byId(id), ratio = Math.min(window.devicePixelRatio || 1, 2);
  element.width = width * ratio;
  element.height = height * ratio;
  element.style.width = `${width}px`;
  element.style.height = `${height}px`;
  const context = element.getContext("2d");
  context.scale(ratio, ratio);
  context.textBaseline = "middle";
  context.font = "13px system-ui, sans-serif";
  context.fillStyle = colour("--text");
  return context;
}

function fit(text, letters = 18) {
  const all = Array.from(text);
  return all.length > letters ? all.slice(0, letters - 1).join("") + "…" : text;
}

const longest = () => Math.max(rows.length, columns.length);
const between = (least, size, most) => Math.max(least, Math.min(most, Math.floor(size)));
const square = () => between(1, 640 / longest(), 24) * state.zoom;
// Width and height of a weight; under a spectrogram columns are narrow, and rows have names.
const cell = () => map.seconds
  ? [between(1, 900 / columns.length, 8) * state.zoom, 20] : [square(), square()];
let margin = 0; // room for labels: as much as the longest needs, if they can be read at all
function measure() {
  const context = byId("heat").getContext("2d"), most = innerWidth < 600 ? 80 : 150;
  context.font = "13px system-ui, sans-serif";
  const wide = text => context.measureText(fit(text, letters())).width;
  const every = [...rows.map(i => map.rows[i]), ...columns.map(i => map.columns[i])];
  margin = map.seconds ? most : square() <= 9 ? 0
    : Math.min(most, 10 + Math.ceil(Math.max(0, ...every.map(wide))));
}
const letters = () => innerWidth < 600 ? 9 : 18;

function picture() { // once it is loaded
  if (!map.picture) return null;
  if (!image || image.src !== map.picture) {
    image = new Image();
    image.onload = () => map.seconds ? drawHeat() : drawPicture();
    image.src = map.picture;
  }
  return image.complete ? image : null;
}

function drawSound(context, edge, width) { // above the columns, with the seconds
  if (picture()) context.drawImage(image, edge, 0, columns.length * width, edge - 18);
  context.textAlign = "left";
  for (let second = 0; second < columns.length * map.seconds; second++)
    context.fillText(`${second} s`, edge + second / map.seconds * width, edge - 8);
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const shaded = (paper, full) => Array.from({ length: 256 }, (_, n) =>
  full.map((c, i) => paper[i] + (c - paper[i]) * n / 255));
const LIGHT = shaded([255, 255, 255], INK), DARK = shaded([22, 24, 28], PALE);
const packed = ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
const [LIGHTS, DARKS] = [LIGHT, DARK].map(some => Uint32Array.from(some, c => packed(c.map(Math.round))));
const shades = () => dark.matches ? DARKS : LIGHTS; // of 0 .. 255, each a pixel in one number

function mixture(at) { // the colour of a weight of several heads
  const found = [255, 255, 255]; // on paper inks take light away, on a dark page lamps add it
  several.forEach((head, n) => {
    const share = peak ? head[at] / peak : 0, hue = HUES[heads()[n] % HUES.length];
    for (let i = 0; i < 3; i++)
      found[i] *= 1 - share * (dark.matches ? hue[i] / 255 : 1 - hue[i] / 255);
  });
  return packed(found.map(c => Math.round(dark.matches ? 255 - c : c)));
}

function drawHeat() {
  const [wide, size] = cell(), edge = margin, width = map.columns.length;
  const context = canvas("heat", edge + columns.length * wide, edge + rows.length * size);
  const pixels = new ImageData(columns.length || 1, rows.length || 1), inks = shades();
  const out = new Uint32Array(pixels.data.buffer), scale = peak ? 255 / peak : 0;
  let n = 0;
  for (const row of rows) for (const column of columns)
    out[n++] = several ? mixture(row * width + column)
      : inks[Math.round(scale * weights[row * width + column])];
  const small = document.createElement("canvas");
  small.width = pixels.width;
  small.height = pixels.height;
  small.getContext("2d").putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, edge, edge, columns.length * wide, rows.length * size);
  context.strokeStyle = colour("--mark");
  context.lineWidth = 2;
  const row = rows.indexOf(lit >= 0 ? lit : state.row), column = columns.indexOf(state.column);
  if (row >= 0) context.strokeRect(edge, edge + row * size, columns.length * wide, size);
  if (row >= 0 && column >= 0)
    context.strokeRect(edge + column * wide, edge + row * size, wide, size);
  if (!edge) return;
  context.textAlign = "right";
  rows.forEach((t, i) =>
    context.fillText(fit(map.rows[t], letters()), edge - 5, edge + (i + .5) * size));
  context.textAlign = "left";
  if (map.seconds) drawSound(context, edge, wide);
  else columns.forEach((t, i) => {
    context.save();
    context.translate(edge + (i + .5) * size, edge - 5);
    context.rotate(-Math.PI / 2);
    context.fillText(fit(map.columns[t], letters()), 0, 0);
    context.restore();
  });
}

function patchSize() {
  const scale = Math.min(384, innerWidth - 30) / Math.max(image.width, image.height);
  return [image.width * scale, image.height * scale];
}

function drawPicture() {
  byId("picture-figure").hidden = !map.grid;
  if (!map.grid || !picture()) return;
  const [width, height] = patchSize(), [down, across] = map.grid;
  const context = canvas("picture", width, height);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, width, height);
  const wide = map.columns.length, count = down * across, patches = new Float32Array(count);
  const pooled = state.row < 0 && wide === count; // no token of its own: the mean over patches
  const first = pooled ? 0 : Math.max(state.row, 0), last = pooled ? map.rows.length - 1 : first;
  for (let row = first; row <= last; row++)
    for (let i = 0; i < count; i++) patches[i] += weights[(row + 1) * wide - count + i];
  const largest = patches.reduce((a, b) => Math.max(a, b), 0);
  patches.forEach((w, i) => {
    context.fillStyle = `rgba(220, 0, 0, ${largest ? .75 * w / largest : 0})`;
    context.fillRect(i % across * width / across, Math.floor(i / across) * height / down,
      width / across, height / down);
  });
}

async function drawThumbs() { // every head, small, unpacked and coloured once for a map
  const one = map, layers = one.weights.length, count = one.weights[0].length, inks = shades();
  const side = between(12, 440 / count, 48), [high, wide] = one.small;
  one.raw ??= new Uint8Array(await unpacked(one.thumbnails));
  if (one.inks !== inks) {
    const pixels = new ImageData(wide * count, high * layers);
    const out = new Uint32Array(pixels.data.buffer);
    for (let l = 0, i = 0; l < layers; l++) for (let h = 0; h < count; h++)
      for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++)
        out[((l * high + y) * count + h) * wide + x] = inks[one.raw[i++]];
    Object.assign(one, { inks, sheet: await createImageBitmap(pixels) });
  }
  if (one !== map) return; // another was chosen meanwhile
  const context = canvas("thumbs", side * count, side * layers);
  context.strokeStyle = colour("--mark");
  context.lineWidth = 3;
  for (let l = 0; l < layers; l++) for (let h = 0; h < count; h++) {
    const at = [h * side, l * side, side - 2, side - 2];
    context.drawImage(one.sheet, h * wide, l * high, wide, high, ...at);
    if (l === state.layer && heads().includes(h))
      context.strokeRect(h * side + 1, l * side + 1, side - 4, side - 4);
  }
}

// Text.

const named = (tokens, i) => `${tokens[i]} (${i})`;

function list() {
  byId("links").replaceChildren(...strongest(STRONGEST).map(([row, column, w]) => {
    const line = document.createElement("tr");
    for (const text of [named(map.rows, row), named(map.columns, column), w.toFixed(4)])
      line.appendChild(document.createElement("td")).textContent = text;
    return line;
  }));
}

function tell() {
  const names = ["map", "layer"].map(id => byId(id).selectedOptions[0].textContent);
  const which = state.heads[0] === "mean" ? "mean of all" : state.heads.join(" + ");
  const where = isRollout() ? `${names[0]}, rollout over layers`
    : `${names[0]}, layer ${names[1]}, head ${which}`;
  const cellAt = state.row >= 0 && state.column >= 0;
  byId("shown").textContent = cellAt
    ? `${named(map.rows, state.row)} → ${named(map.columns, state.column)}: ` +
      `${weights[state.row * map.columns.length + state.column].toFixed(4)} (${where})`
    : `${where}: the largest weight is ${peak.toFixed(4)}`;
}

// What is chosen.

function fill(id, texts, values) {
  byId(id).replaceChildren(...texts.map((text, i) => {
    const option = document.createElement("option");
    option.value = values[i];
    option.textContent = text;
    option.disabled = text === "several";
    return option;
  }));
}

function chips() {
  byId("chips").replaceChildren(...map.weights[0].map((_, h) => {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip";
    chip.textContent = h;
    chip.style.setProperty("--chip", `rgb(${HUES[h % HUES.length]})`);
    chip.setAttribute("aria-pressed", state.heads.includes(h));
    chip.addEventListener("click", () => {
      const others = state.heads.filter(other => other !== h && other !== "mean");
      const kept = state.heads.includes(h) ? others : [...others, h];
      choose({ heads: kept.length ? kept.sort((a, b) => a - b) : [h] });
    });
    return chip;
  }));
}

function sentences() { // where the second sentence of an encoder's text begins, or 0
  const end = map.rows.findIndex(token => END.test(token)) + 1;
  return map.rows.join("\0") === map.columns.join("\0") && end < map.rows.length ? end : 0;
}

function filter() {
  const second = sentences(), [from, to] = state.part || "  ";
  const shows = (tokens, side) => tokens.map((_, i) => i).filter(i =>
    !(state.hide && SPECIAL.test(tokens[i])) &&
    (!second || side === " " || side === undefined || (side === "A") === (i < second)));
  rows = shows(map.rows, from);
  columns = shows(map.columns, to);
}

async function choose(changes) {
  const mine = ++drawing;
  document.body.dataset.busy = "1";
  Object.assign(state, changes);
  if ("map" in changes) {
    map = data.maps[state.map];
    Object.assign(state, { row: -1, column: -1, part: "" });
    const count = map.weights[0].length, layers = map.weights.map((_, i) => i);
    const rolls = layers.length > 1 && map.rows.length === map.columns.length &&
      map.rows.length <= MOST_ROLLED;
    fill("layer", [...layers, ...rolls ? ["rollout"] : []], [...layers, layers.length]);
    fill("head", [...map.weights[0].map((_, h) => h), "mean of all", "several"],
      [...map.weights[0].map((_, h) => h), "mean", ""]);
    fill("row", ["all", ...map.rows.map((_, i) => named(map.rows, i))], [-1, ...map.rows.keys()]);
    fill("part", ["all", "A → A", "A → B", "B → A", "B → B"], ["", "AA", "AB", "BA", "BB"]);
    byId("part-field").hidden = !sentences();
    byId("hide-field").hidden = ![...map.rows, ...map.columns].some(t => SPECIAL.test(t));
    state.layer = Math.min(state.layer, layers.length - 1 + rolls);
    if (state.heads.some(h => h >= count)) state.heads = [0];
  }
  byId("layer").value = state.layer;
  byId("head").value = state.heads.length === 1 ? state.heads[0] : "";
  byId("row").value = state.row;
  filter();
  await load();
  if (mine !== drawing) return; // another choice came meanwhile
  measure();
  peak = 0;
  for (const head of several || [weights]) for (const w of head) if (w > peak) peak = w;
  for (const show of [chips, drawPicture, drawLines, drawHeat, list, tell]) show();
  await drawThumbs();
  if (mine === drawing) delete document.body.dataset.busy;
}

const number = text => text === "mean" ? text : Number(text);
for (const id of ["map", "layer", "row", "zoom"])
  byId(id).addEventListener("change", event =>
    choose({ [id]: Number(event.target.value), ...(id === "row" && { column: -1 }) }));
byId("head").addEventListener("change", event => choose({ heads: [number(event.target.value)] }));
byId("part").addEventListener("change", event => choose({ part: event.target.value }));
byId("hide").addEventListener("change", event => choose({ hide: event.target.checked }));

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
byId("heat").addEventListener("keydown", event => {
  const step = STEPS[event.key];
  if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const started = state.row >= 0 && state.column >= 0; // the first key shows where one is
  const move = (shown, at, by) =>
    shown[between(0, Math.max(shown.indexOf(at), 0) + (started ? by : 0), shown.length - 1)];
  choose({ row: move(rows, state.row, step[0]), column: move(columns, state.column, step[1]) });
});
const at = (position, start, size) => Math.floor((position - start) / size);
byId("heat").addEventListener("click", event => {
  const [wide, high] = cell();
  const row = rows[at(event.offsetY, margin, high)];
  const column = columns[at(event.offsetX, margin, wide)];
  if (row !== undefined && column !== undefined) choose({ row, column });
});
byId("picture").addEventListener("click", event => {
  const [width, height] = patchSize(), [down, across] = map.grid;
  const patch = at(event.offsetY, 0, height / down) * across + at(event.offsetX, 0, width / across);
  choose({ row: map.rows.length - down * across + patch, column: -1 });
});
byId("thumbs").addEventListener("click", event => {
  const side = between(12, 440 / map.weights[0].length, 48);
  choose({ layer: at(event.offsetY, 0, side), heads: [at(event.offsetX, 0, side)] });
});
dark.addEventListener("change", () => choose({}));
addEventListener("resize", () => choose({}));

document.title = byId("title").textContent = data.title;
fill("map", data.maps.map(({ name }) => name), [...data.maps.keys()]);
choose({ map: 0 });
