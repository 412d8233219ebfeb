// Heat maps: a canvas drawn at the screen's own resolution, with the number under the pointer or the arrow keys beside it.

import { css, shade, signed } from "./colour.js";
import { el, fixed } from "./dom.js";

const watched = new WeakMap();
const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => watched.get(target)?.()));

/** Calls `draw` whenever an element has got a size, and again when it gets another. */
export function whenSized(element, draw) {
  watched.set(element, draw);
  sizes.observe(element);
}

/** Draws all of them now, where nobody can wait for it: the browser is about to print. */
export function drawNow() {
  for (const element of document.querySelectorAll("canvas, svg, .scroll, .field")) watched.get(element)?.();
}

/** How far a scale around 0 should reach: to the largest, unless a few stand out so far that the rest would be pale. */
export function span(...lists) {
  let most = 1e-9,
    squares = 0,
    count = 0;
  for (const values of lists) {
    for (const value of values) {
      if (!Number.isFinite(value)) continue;
      most = Math.max(most, Math.abs(value));
      squares += value * value;
      count += 1;
    }
  }
  return Math.max(1e-9, Math.min(most, 4 * Math.sqrt(squares / Math.max(1, count))));
}

/**
 * A figure of numbers (rows × columns). `limit`: signed numbers from −limit to limit; without it: weights from 0 to 1.
 * `cell` says what a number belongs to, `label` what all of it is, `high` how many pixels a row has.
 */
export function heat({
  values,
  rows = 1,
  columns,
  label,
  note = "",
  limit = null,
  high = 22,
  cell,
  lines = null,
  marked = null,
  key = null,
  pick = null,
}) {
  const canvas = el("canvas", {
    class: "heat",
    tabindex: "0",
    role: "img",
    key,
    "aria-label": `${label}. ${summary(values, limit)}`,
  });
  canvas.style.setProperty("height", `${high * rows}px`);
  if (pick) canvas.classList.add("picks");
  const readout = el("output", { class: "readout" });
  const at = { row: marked ?? 0, column: 0 };
  const tell = () => {
    readout.textContent = `${cell(at.row, at.column)}: ${fixed(values[at.row * columns + at.column])}`;
  };
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    at.row = clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), rows);
    at.column = clamp(Math.floor(((event.clientX - box.left) / box.width) * columns), columns);
    tell();
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerleave", () => {
    readout.textContent = "";
  });
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && tell());
  canvas.addEventListener("blur", () => {
    readout.textContent = "";
  });
  canvas.addEventListener("click", (event) => {
    point(event);
    pick?.(at.row, at.column);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && pick) pick(at.row, at.column);
    const [down, right] = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key] ?? [0, 0];
    if (event.shiftKey || (!right && (!down || rows === 1))) return;
    [at.row, at.column] = [clamp(at.row + down, rows), clamp(at.column + right, columns)];
    event.preventDefault();
    event.stopPropagation();
    tell();
  });
  whenSized(canvas, () => raster(canvas, { values, rows, columns, limit, lines, marked }));
  const caption = el(
    "figcaption",
    {},
    el("span", {}, el("b", { text: label }), note && el("span", { class: "muted", text: ` ${note}` })),
    readout,
  );
  return el("figure", { class: "strip" }, caption, canvas);
}

function clamp(value, end) {
  return Math.min(end - 1, Math.max(0, value));
}

function summary(values, limit) {
  let low = Infinity,
    high = -Infinity;
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return `${values.length} numbers from ${fixed(low)} to ${fixed(high)}${limit ? "" : ", 0 pale and 1 strong"}; arrow keys read them`;
}

/** Fills a canvas with its numbers; where several share a pixel it shows the strongest. */
export function raster(canvas, { values, rows, columns, limit, lines, marked }) {
  const ratio = devicePixelRatio || 1,
    box = canvas.getBoundingClientRect();
  const width = Math.max(1, Math.round(box.width * ratio)),
    height = Math.max(1, Math.round(box.height * ratio));
  if (!box.width) return;
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d"),
    image = context.createImageData(width, height);
  for (let row = 0; row < rows; row += 1) {
    const first = Math.round((row * height) / rows),
      last = Math.round(((row + 1) * height) / rows);
    if (first === last) continue;
    const start = first * width * 4;
    for (let x = 0; x < width; x += 1) {
      const [red, green, blue] = colour(values, row * columns, (x * columns) / width, ((x + 1) * columns) / width, limit);
      image.data.set([red, green, blue, 255], start + x * 4);
    }
    for (let y = first + 1; y < last; y += 1) image.data.copyWithin(y * width * 4, start, start + width * 4);
  }
  context.putImageData(image, 0, 0);
  const strong = css(limit ? shade(1) : signed(-1));
  context.fillStyle = getComputedStyle(canvas).color;
  for (const line of lines ?? []) context.fillRect(Math.round((line * width) / columns) - 0.5 * ratio, 0, ratio, height);
  if (marked === null) return;
  context.strokeStyle = strong;
  context.lineWidth = 2 * ratio;
  context.strokeRect(ratio, (marked * height) / rows + ratio, width - 2 * ratio, height / rows - 2 * ratio);
}

function colour(values, start, from, to, limit) {
  const first = Math.floor(from),
    last = Math.max(first + 1, Math.floor(to));
  let value = values[start + first];
  for (let column = first + 1; column < last; column += 1)
    if (Math.abs(values[start + column]) > Math.abs(value)) value = values[start + column];
  return limit ? signed(value / limit) : shade(value);
}

/** What colours mean. */
export function legend(limit = null) {
  const steps = Array.from({ length: 128 }, (_, place) => (limit ? (2 * place) / 127 - 1 : place / 127));
  const canvas = el("canvas", { class: "heat", "aria-hidden": "true" });
  whenSized(canvas, () => raster(canvas, { values: steps, rows: 1, columns: 128, limit: limit ? 1 : null }));
  return el(
    "span",
    { class: "legend" },
    el("span", { text: limit ? fixed(-limit, 1) : "0" }),
    canvas,
    el("span", { text: limit ? fixed(limit, 1) : "1" }),
  );
}
