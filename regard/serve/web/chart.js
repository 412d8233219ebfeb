// Curves: one figure with axes, lines told apart by colour, dash and name, and the numbers under the pointer or the arrow keys.

import { lines as colours } from "./colour.js";
import { el, short, svg, table } from "./dom.js";
import { whenSized } from "./draw.js";

const DASHES = ["", "6 3", "2 3", "9 3 2 3"];
const EDGE = { left: 54, right: 14, top: 10, bottom: 34 };

/**
 * `series`: [{name, points: [[x, y], …], band: [[x, low, high], …], paint}]; `paint`: the number of its colour and dash, else its place.
 * `marks`: [[x, name], …] are pointed out on the axis; `reach`: [from, to] of the x axis, so that charts can share it.
 */
export function chart({
  label,
  series,
  x,
  y,
  high = 240,
  key = null,
  marks = [],
  reach = null,
  named = false,
  logarithmic = false,
}) {
  const whole = series.filter((own) => own.points.length).map((own, place) => ({ ...own, paint: own.paint ?? place }));
  const drawing = svg("svg", {
    class: "chart",
    role: "img",
    tabindex: "0",
    key,
    "aria-label": `${label}. ${told(whole, x)}`,
    height: high,
  });
  const readout = el("output", { class: "readout" });
  const names = el(
    "ul",
    { class: "names" },
    whole.map((own) => el("li", {}, sample(own.paint), own.name)),
  );
  whenSized(drawing, () => draw(drawing, readout, { series: whole, x, high, marks, reach, logarithmic }));
  return el(
    "figure",
    { class: "curves" },
    el("figcaption", {}, el("span", {}, el("b", { text: label }), y && ` ${y}`), readout),
    drawing,
    (named || whole.length > 1) && names,
  );
}

function told(series, x) {
  return series
    .map(
      ({ name, points }) =>
        `${name}: from ${short(points[0][1])} at ${x} ${short(points[0][0])} to ${short(points.at(-1)[1])} at ${short(points.at(-1)[0])}`,
    )
    .join("; ");
}

function sample(place) {
  const stroke = colours()[place % 8];
  return svg(
    "svg",
    { class: "sample", viewBox: "0 0 24 8", "aria-hidden": "true" },
    svg("line", {
      x1: 0,
      y1: 4,
      x2: 24,
      y2: 4,
      stroke,
      "stroke-width": 2.5,
      "stroke-dasharray": DASHES[Math.floor(place / 2) % 4],
    }),
  );
}

function draw(drawing, readout, { series, x, high, marks, reach, logarithmic }) {
  const wide = drawing.getBoundingClientRect().width;
  if (!wide || !series.length) return;
  const points = series.flatMap((own) => own.points),
    ends = series.flatMap((own) => (own.band ?? []).flatMap(([, low, top]) => [low, top]));
  const level = (value) => (logarithmic ? Math.log10(Math.max(value, 1e-12)) : value);
  const across = extent(reach ?? points.map(([at]) => at)),
    values = points.map(([, value]) => level(value)),
    floor = !logarithmic && Math.min(...values, ...ends) >= 0 ? 0 : -Infinity; // what is never below 0 has no axis that is
  const up = extent([...values, ...ends], 0.04, floor);
  const toX = (value) => EDGE.left + ((value - across[0]) / (across[1] - across[0])) * (wide - EDGE.left - EDGE.right);
  const toY = (value) => high - EDGE.bottom - ((level(value) - up[0]) / (up[1] - up[0])) * (high - EDGE.top - EDGE.bottom);
  drawing.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  const parts = [];
  for (const [at, name] of logarithmic ? powers(up) : ticks(up, 5)) {
    parts.push(svg("line", { class: "rule", x1: EDGE.left, x2: wide - EDGE.right, y1: toY(at), y2: toY(at) }));
    parts.push(svg("text", { class: "tick", x: EDGE.left - 6, y: toY(at) + 4, "text-anchor": "end", text: name }));
  }
  for (const [at, name] of ticks(across, Math.max(2, Math.floor(wide / 110)))) {
    parts.push(svg("text", { class: "tick", x: toX(at), y: high - EDGE.bottom + 16, "text-anchor": "middle", text: name }));
  }
  parts.push(svg("text", { class: "tick name", x: wide - EDGE.right, y: high - 4, "text-anchor": "end", text: x }));
  for (const [at, name] of marks) {
    parts.push(
      svg("line", { class: "mark", x1: toX(at), x2: toX(at), y1: EDGE.top, y2: high - EDGE.bottom }),
      svg("text", { class: "tick", x: toX(at) + 4, y: EDGE.top + 12, text: name }),
    );
  }
  series.forEach((own) => parts.push(...curve(own, toX, toY)));
  const rule = svg("line", { class: "pointer", y1: EDGE.top, y2: high - EDGE.bottom, visibility: "hidden" });
  drawing.replaceChildren(...parts, rule);
  listen(drawing, readout, rule, series, x, toX);
}

function curve({ points, band, paint }, toX, toY) {
  const stroke = colours()[paint % 8],
    parts = [];
  if (band) {
    const way = [...band.map(([at, , top]) => [at, top]), ...[...band].reverse().map(([at, low]) => [at, low])];
    parts.push(
      svg("polygon", { points: way.map(([at, value]) => `${toX(at)},${toY(value)}`).join(" "), fill: stroke, opacity: 0.16 }),
    );
  }
  const way = points.map(([at, value]) => `${toX(at).toFixed(1)},${toY(value).toFixed(1)}`).join(" ");
  parts.push(
    svg("polyline", {
      points: way,
      fill: "none",
      stroke,
      "stroke-width": 2,
      "stroke-linejoin": "round",
      "stroke-dasharray": DASHES[Math.floor(paint / 2) % 4],
    }),
  );
  if (points.length <= 24)
    for (const [at, value] of points) parts.push(svg("circle", { cx: toX(at), cy: toY(value), r: 2.6, fill: stroke }));
  return parts;
}

function listen(drawing, readout, rule, series, x, toX) {
  const places = [...new Set(series.flatMap((own) => own.points.map(([at]) => at)))].sort((one, other) => one - other);
  let at = places.length - 1;
  const tell = () => {
    const values = series
      .map(({ name, points }) => [name, points.find(([place]) => place === places[at])])
      .filter(([, found]) => found);
    readout.textContent = `${x} ${short(places[at]).replace(/\.0+$/, "")}: ${values.map(([name, [, value]]) => `${series.length > 1 ? `${name} ` : ""}${short(value)}`).join(" · ")}`;
    for (const name of ["x1", "x2"]) rule.setAttribute(name, toX(places[at]));
    rule.setAttribute("visibility", "visible");
  };
  const quiet = () => {
    readout.textContent = "";
    rule.setAttribute("visibility", "hidden");
  };
  drawing.onpointermove = (event) => {
    const wanted = event.clientX - drawing.getBoundingClientRect().left;
    at = places.reduce(
      (best, value, place) => (Math.abs(toX(value) - wanted) < Math.abs(toX(places[best]) - wanted) ? place : best),
      0,
    );
    tell();
  };
  drawing.onpointerleave = drawing.onblur = quiet;
  drawing.onfocus = () => drawing.matches(":focus-visible") && tell();
  drawing.onkeydown = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || event.shiftKey) return;
    at = Math.min(places.length - 1, Math.max(0, at + move));
    event.preventDefault();
    event.stopPropagation();
    tell();
  };
}

function extent(values, room = 0, floor = -Infinity) {
  const finite = values.filter(Number.isFinite),
    low = Math.min(...finite),
    high = Math.max(...finite);
  const beyond = low === high ? (Math.abs(low) || 1) * 0.1 : (high - low) * room;
  return [Math.max(floor, low - beyond), high + beyond];
}

/** Round numbers on an axis, with as many places as they differ in. */
function ticks([low, high], about) {
  const rough = (high - low) / about,
    size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * size).find((own) => own >= rough * 0.999);
  const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)),
    found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) {
    const value = place * step || 0;
    found.push([
      value,
      places > 5
        ? short(value)
        : value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places }).replace("-", "−"),
    ]);
  }
  return found;
}

/** The same on an axis of logarithms: 1, 2 and 5 times powers of ten, fewer where there are many. */
function powers([low, high]) {
  const digits = high - low > 4 ? [1] : high - low > 0.6 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9],
    found = [];
  for (let power = Math.floor(low); power <= high; power += 1) for (const digit of digits) found.push(digit * 10 ** power);
  return found.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high).map((value) => [value, plain(value)]);
}

/** A number without places that say nothing: 0.5, 20, 1,000. */
function plain(value) {
  const text = short(value);
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

/** The same as a table, for those who would rather read. */
export function numbers(label, x, series) {
  const places = [...new Set(series.flatMap((own) => own.points.map(([at]) => at)))].sort((one, other) => one - other);
  const known = series.map((own) => new Map(own.points));
  return table(
    label,
    [x, ...series.map((own) => own.name)],
    places.map((at) => [short(at).replace(/\.0+$/, ""), ...known.map((own) => short(own.get(at)))]),
    { class: "numbers" },
  );
}
