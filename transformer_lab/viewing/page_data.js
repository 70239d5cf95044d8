"use strict";
const byId = id => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const STRONGEST = 20, MOST_LINES = 4000, INK = [8, 48, 107], PALE = [140, 190, 255];
const HUES = [[18, 97, 166], [199, 91, 18], [26, 127, 55], [130, 80, 223], [191, 57, 137],
  [154, 103, 0], [0, 134, 140], [207, 34, 46]];
const SPECIAL = /^(\[[A-Z]+\]|<\/?[\w|]+>)$/, END = /^(\[SEP\]|<\/s>)$/;
const MOST_ROLLED = 300; // tokens up to which attention is rolled out over layers
// Of the heads one is shown, several in colours, or (number "mean") the mean of all; `part` is from
// which sentence to which.
const state = { map: 0, layer: 0, heads: [0], row: -1, column: -1, part: "", hide: false, zoom: 1 };
const decoded = new Map();
let map, weights, several, peak; // of what is chosen; peak: its largest weight
let rows, columns; // numbers of the tokens that are shown
let lit = -1; // the row under the pointer
let image = null, drawing = 0;

// Weights. A head is unpacked when it is first shown.

function bytes(text) {
  const found = atob(text), all = new Uint8Array(found.length);
  for (let i = 0; i < all.length; i++) all[i] = found.charCodeAt(i);
  return all;
}

async function unpacked(text) {
  const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function oneHead(layer, h) {
  const key = `${state.map} ${layer} ${h}`;
  if (decoded.has(key)) return decoded.get(key);
  const width = map.columns.length, raw = await unpacked(map.weights[layer][h]);
  const numbers = map.bytes === 2 ? new Uint16Array(raw) : new Uint8Array(raw);
  const largest = new Float32Array(await unpacked(map.largest[layer][h]));
  const found = new Float32Array(numbers.length);
  for (let row = 0, i = 0; row < largest.length; row++)
    for (const end = i + width; i < end; i++) found[i] = numbers[i] / map.levels * largest[row];
  if (decoded.size > 64) decoded.clear();
  decoded.set(key, found);
  return found;
}

async function meanOf(layer, heads) {
  const all = await Promise.all(heads.map(h => oneHead(layer, h)));
  return all.length === 1 ? all[0] : all[0].map((_, i) => {
    let sum = 0;
    for (const head of all) sum += head[i];
    return sum / all.length;
  });
}

async function rollout() { // the product of all layers' (mean + 1) / 2 (Abnar 2020)
  const n = map.rows.length, every = map.weights[0].map((_, h) => h);
  let product = null;
  for (let layer = 0; layer < map.weights.length; layer++) {
    const one = (await meanOf(layer, every)).map((w, i) => w / 2 + (i % (n + 1) ? 0 : .5));
    const next = new Float32Array(n * n);
    if (product) for (let i = 0; i < n; i++) for (let k = 0; k < n; k++) {
      const w = one[i * n + k];
      if (w) for (let j = 0; j < n; j++) next[i * n + j] += w * product[k * n + j];
    }
    product = product ? next : one;
  }
  return product;
}

const isRollout = () => state.layer === map.weights.length;
const heads = () => state.heads[0] === "mean" ? map.weights[0].map((_, h) => h) : state.heads;

async function load() {
  const chosen = heads();
  weights = isRollout() ? await rollout() : await meanOf(state.layer, chosen);
  several = !isRollout() && state.heads.length > 1
    ? await Promise.all(chosen.map(h => oneHead(state.layer, h))) : null;
}

const BINS = 4096; // parts of 0 .. peak in which weights are counted, to sort only the strongest

function strongest(most) { // [row, column, weight] of what is shown, or fewer links
  const width = map.columns.length, from = lit >= 0 ? lit : state.row, counts = new Uint32Array(BINS);
  const some = rows.filter(row => from < 0 || row === from), found = [];
  const bin = w => Math.min(BINS - 1, Math.floor(w / peak * BINS));
  for (const row of some) for (const column of columns) {
    const w = weights[row * width + column];
    if (w > 0) counts[bin(w)]++;
  }
  let least = BINS, count = 0;
  while (least > 0 && count < most) count += counts[--least];
  for (const row of some) for (const column of columns) {
    const w = weights[row * width + column];
    if (w > 0 && bin(w) >= least) found.push([row, column, w]);
  }
  return found.sort((a, b) => b[2] - a[2]).slice(0, most);
}
