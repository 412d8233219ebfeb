// Every layer and head at once: small maps on one canvas, with a button over each.

import { shade } from "./colour.js";
import { el } from "./dom.js";
import { whenSized } from "./draw.js";
import { read } from "./arrays.js";

const LARGEST = 64,
  SMALLEST = 14;

/** `pick(layer, head)` in places from 1; head 0 is not part of the grid. */
export function grid(record, picked, pick) {
  const weights = read(record.weights),
    [layers, heads] = weights.shape;
  const canvas = el("canvas", { "aria-hidden": "true" });
  const field = el("div", { class: "field" }, canvas, buttons(record, picked, pick));
  const whole = el(
    "div",
    { class: "heads", role: "group", "aria-label": `${layers} layers of ${heads} heads` },
    el("span"),
    el(
      "div",
      { class: "across", "aria-hidden": "true" },
      record.heads.map((head) => el("span", { text: String(head + 1) })),
    ),
    el(
      "div",
      { class: "down", "aria-hidden": "true" },
      record.layers.map((layer) => el("span", { text: String(layer + 1) })),
    ),
    field,
  );
  whole.style.setProperty("--heads", String(heads));
  whenSized(field, () => {
    const room = whole.getBoundingClientRect().width - 28;
    const cell = Math.max(SMALLEST, Math.min(LARGEST, Math.floor(room / heads)));
    whole.style.setProperty("--cell", `${cell}px`);
    paint(canvas, weights, cell);
  });
  return whole;
}

function buttons(record, picked, pick) {
  const layers = record.layers.length,
    heads = record.heads.length;
  const made = [];
  for (let layer = 1; layer <= layers; layer += 1) {
    for (let head = 1; head <= heads; head += 1) {
      const here = layer === picked.layer && (head === picked.head || (picked.head === 0 && head === 1));
      const name = `layer ${record.layers[layer - 1] + 1}, head ${record.heads[head - 1] + 1}`;
      const ends = [head === 1 && "first", head === heads && "last"].filter(Boolean).join(" ");
      const classes = picked.head === 0 && layer === picked.layer ? `row-picked ${ends}` : null;
      made.push(
        el("button", {
          type: "button",
          "aria-label": name,
          title: name,
          class: classes,
          "aria-pressed": String(layer === picked.layer && head === picked.head),
          tabindex: here ? 0 : -1,
          key: here ? "grid" : null,
          on: { click: () => pick(layer, head), keydown: (event) => along(event, layer, head, layers, heads, pick) },
        }),
      );
    }
  }
  return el("div", { class: "picks" }, made);
}

function along(event, layer, head, layers, heads, pick) {
  const [down, right] = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key] ?? [0, 0];
  if ((!down && !right) || event.shiftKey) return;
  event.preventDefault();
  event.stopPropagation();
  pick(Math.min(layers, Math.max(1, layer + down)), Math.min(heads, Math.max(1, head + right)), true);
}

/** All of them in one go: each pixel asks its own map for the weight under it. */
function paint(canvas, weights, cell) {
  const [layers, heads, rows, columns] = weights.shape,
    ratio = devicePixelRatio || 1;
  const [width, height] = [heads * cell, layers * cell].map((size) => Math.round(size * ratio));
  [canvas.width, canvas.height] = [width, height];
  canvas.style.setProperty("width", `${heads * cell}px`);
  canvas.style.setProperty("height", `${layers * cell}px`);
  const context = canvas.getContext("2d"),
    image = context.createImageData(width, height),
    pixels = new Uint32Array(image.data.buffer);
  const gap = Math.max(1, Math.round((cell > 24 ? 3 : 1) * ratio)),
    size = Math.round(cell * ratio) - gap;
  const colours = Uint32Array.from({ length: 256 }, (_, step) => packed(shade(step / 255)));
  for (let layer = 0; layer < layers; layer += 1) {
    for (let head = 0; head < heads; head += 1) {
      const start = (layer * heads + head) * rows * columns,
        left = Math.round(head * cell * ratio),
        top = Math.round(layer * cell * ratio);
      for (let y = 0; y < size; y += 1) {
        const row = start + Math.floor((y * rows) / size) * columns,
          line = (top + y) * width + left;
        for (let x = 0; x < size && left + x < width; x += 1) {
          pixels[line + x] = colours[Math.round(255 * Math.min(1, weights.values[row + Math.floor((x * columns) / size)]))];
        }
      }
    }
  }
  context.putImageData(image, 0, 0);
}

function packed([red, green, blue]) {
  return (255 << 24) | (blue << 16) | (green << 8) | red;
}
