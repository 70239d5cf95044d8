"use strict";
const byId = id => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const STRONGEST = 20, MOST_LINES = 4000, INK = "8, 48, 107";
const state = { map: 0, layer: 0, head: 0, row: -1, column: -1 };
let map, weights, peak; // of what is chosen; peak: its largest weight
let image = null;

// Weights.

const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));

function oneHead(h) {
  const width = map.columns.length, raw = bytes(map.weights[state.layer][h]).buffer;
  const numbers = map.bytes === 2 ? new Uint16Array(raw) : new Uint8Array(raw);
  const largest = new Float32Array(bytes(map.largest[state.layer][h]).buffer);
  const unit = map.bytes === 2 ? 65535 : 255, found = new Float32Array(numbers.length);
  for (let i = 0; i < numbers.length; i++)
    found[i] = numbers[i] / unit * largest[Math.floor(i / width)];
  return found;
}

function chosenHead() { // beyond the last head: the mean of them
  const heads = map.weights[state.layer].length;
  if (state.head < heads) return oneHead(state.head);
  const sum = oneHead(0);
  for (let h = 1; h < heads; h++) oneHead(h).forEach((w, i) => { sum[i] += w; });
  return sum.map(w => w / heads);
}

function links(most) { // the strongest [row, column, weight] of the chosen row, or of all
  const width = map.columns.length, first = Math.max(state.row, 0) * width;
  const part = state.row < 0 ? weights : weights.subarray(first, first + width);
  const least = part.length > most ? Float32Array.from(part).sort()[part.length - most] : 0;
  const found = [];
  part.forEach((w, i) => {
    if (w > 0 && w >= least)
      found.push([Math.floor((first + i) / width), (first + i) % width, w]);
  });
  return found.sort((a, b) => b[2] - a[2]).slice(0, most);
}

// Drawing. Canvases, because a page with an element a weight would not move at 512 tokens.

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
  return context;
}

function fit(text, letters = 18) {
  const all = Array.from(text);
  return all.length > letters ? all.slice(0, letters - 1).join("") + "…" : text;
}

const longest = () => Math.max(map.rows.length, map.columns.length);
const between = (least, size, most) => Math.max(least, Math.min(most, Math.floor(size)));
const square = () => between(1, 640 / longest(), 24);
// Width and height of a weight; under a spectrogram columns are narrow, and rows have names.
const cell = () => map.seconds
  ? [between(1, 900 / map.columns.length, 8), 20] : [square(), square()];
const margin = () => map.seconds || square() > 9 ? 150 : 0;

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
  if (picture()) context.drawImage(image, edge, 0, map.columns.length * width, edge - 18);
  context.fillStyle = "#111";
  context.textAlign = "left";
  for (let second = 0; second < map.columns.length * map.seconds; second++)
    context.fillText(`${second} s`, edge + second / map.seconds * width, edge - 8);
}

function drawHeat() {
  const rows = map.rows.length, columns = map.columns.length, [wide, size] = cell();
  const edge = margin(), context = canvas("heat", edge + columns * wide, edge + rows * size);
  const pixels = new ImageData(columns, rows);
  weights.forEach((w, i) => {
    const share = peak ? w / peak : 0;
    pixels.data.set([255 - 247 * share, 255 - 207 * share, 255 - 148 * share, 255], 4 * i);
  });
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  small.getContext("2d").putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, edge, edge, columns * wide, rows * size);
  context.strokeStyle = "#b34700";
  context.lineWidth = 2;
  if (state.row >= 0) context.strokeRect(edge, edge + state.row * size, columns * wide, size);
  if (state.row >= 0 && state.column >= 0)
    context.strokeRect(edge + state.column * wide, edge + state.row * size, wide, size);
  if (!edge) return;
  context.textAlign = "right";
  map.rows.forEach((t, i) => context.fillText(fit(t), edge - 5, edge + (i + .5) * size));
  context.textAlign = "left";
  if (map.seconds) drawSound(context, edge, wide);
  else map.columns.forEach((t, i) => {
    context.save();
    context.translate(edge + (i + .5) * size, edge - 5);
    context.rotate(-Math.PI / 2);
    context.fillText(fit(t), 0, 0);
    context.restore();
  });
}

function drawLines() {
  byId("lines-figure").hidden = !!map.seconds; // thousands of frames in one column show nothing
  if (map.seconds) return;
  const step = longest() > 64 ? 12 : 20, x = [150, 350];
  const context = canvas("lines", 500, longest() * step), shown = links(MOST_LINES);
  context.font = `${Math.min(13, step)}px system-ui, sans-serif`;
  for (const [row, column, w] of shown.slice().reverse()) { // the strongest on top
    context.strokeStyle = `rgba(${INK}, ${peak ? w / peak : 0})`;
    context.beginPath();
    context.moveTo(x[0], (row + .5) * step);
    context.lineTo(x[1], (column + .5) * step);
    context.stroke();
  }
  byId("left-out").textContent =
    shown.length === MOST_LINES ? `The strongest ${MOST_LINES} are drawn.` : "";
  context.textAlign = "right";
  map.rows.forEach((t, i) => {
    context.fillStyle = i === state.row ? "#b34700" : "#111";
    context.fillText(fit(t), x[0] - 6, (i + .5) * step);
  });
  context.textAlign = "left";
  context.fillStyle = "#111";
  map.columns.forEach((t, i) => context.fillText(fit(t), x[1] + 6, (i + .5) * step));
}

function drawPicture() {
  byId("picture-figure").hidden = !map.grid;
  if (!map.grid || !picture()) return;
  const scale = 384 / Math.max(image.width, image.height), [down, across] = map.grid;
  const width = image.width * scale, height = image.height * scale;
  const context = canvas("picture", width, height);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, width, height);
  const columns = map.columns.length, count = down * across, patches = new Float32Array(count);
  const pooled = state.row < 0 && columns === count; // no token of its own: the mean over patches
  const first = pooled ? 0 : Math.max(state.row, 0), last = pooled ? map.rows.length - 1 : first;
  for (let row = first; row <= last; row++)
    for (let i = 0; i < count; i++) patches[i] += weights[(row + 1) * columns - count + i];
  const largest = patches.reduce((a, b) => Math.max(a, b), 0);
  patches.forEach((w, i) => {
    context.fillStyle = `rgba(220, 0, 0, ${largest ? .75 * w / largest : 0})`;
    context.fillRect(i % across * width / across, Math.floor(i / across) * height / down,
      width / across, height / down);
  });
}

// Text.

const named = (tokens, i) => `${tokens[i]} (${i})`;

function list() {
  byId("links").replaceChildren(...links(STRONGEST).map(([row, column, w]) => {
    const line = document.createElement("tr");
    for (const text of [named(map.rows, row), named(map.columns, column), w.toFixed(4)])
      line.appendChild(document.createElement("td")).textContent = text;
    return line;
  }));
}

function tell() {
  const names = ["map", "layer", "head"].map(id => byId(id).selectedOptions[0].textContent);
  const where = `${names[0]}, layer ${names[1]}, head ${names[2]}`;
  const cellAt = state.row >= 0 && state.column >= 0;
  byId("shown").textContent = cellAt
    ? `${named(map.rows, state.row)} → ${named(map.columns, state.column)}: ` +
      `${weights[state.row * map.columns.length + state.column].toFixed(4)} (${where})`
    : `${where}: the largest weight is ${peak.toFixed(4)}`;
}

// What is chosen.

function fill(id, texts, first = 0) {
  const chosen = state[id];
  byId(id).replaceChildren(...texts.map((text, i) => {
    const option = document.createElement("option");
    option.value = i + first;
    option.textContent = text;
    return option;
  }));
  state[id] = Math.min(chosen, texts.length - 1 + first);
  byId(id).value = state[id];
}

function choose(changes) {
  Object.assign(state, changes);
  if ("map" in changes) {
    map = data.maps[state.map];
    state.row = state.column = -1;
    fill("layer", map.weights.map((_, i) => `${i}`));
    fill("head", [...map.weights[0].map((_, i) => `${i}`), "mean of all"]);
    fill("row", ["all", ...map.rows.map((_, i) => named(map.rows, i))], -1);
  }
  if (["map", "layer", "head"].some(name => name in changes)) {
    weights = chosenHead();
    peak = weights.reduce((a, b) => Math.max(a, b), 0);
  }
  byId("row").value = state.row;
  for (const show of [drawPicture, drawLines, drawHeat, list, tell]) show();
}

for (const id of ["map", "layer", "head", "row"])
  byId(id).addEventListener("change", event =>
    choose({ [id]: Number(event.target.value), ...(id === "row" && { column: -1 }) }));

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
byId("heat").addEventListener("keydown", event => {
  const step = STEPS[event.key];
  if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const started = state.row >= 0 && state.column >= 0; // the first key shows where one is
  const move = (at, by, end) =>
    Math.max(0, Math.min(end - 1, Math.max(at, 0) + (started ? by : 0)));
  choose({ row: move(state.row, step[0], map.rows.length),
    column: move(state.column, step[1], map.columns.length) });
});
byId("heat").addEventListener("click", event => {
  const at = (position, size) => Math.floor((position - margin()) / size);
  const [wide, high] = cell(), row = at(event.offsetY, high), column = at(event.offsetX, wide);
  if (row >= 0 && column >= 0 && row < map.rows.length && column < map.columns.length)
    choose({ row, column });
});

document.title = byId("title").textContent = data.title;
fill("map", data.maps.map(({ name }) => name));
choose({ map: 0 });
