// The tree of everything that was looked at, growing from left to right: a column for each position, the most probable at the top.

import { el, fixed, svg } from "./dom.js";
import { MOST_PARTS, mended, names } from "./trace.js";
import { whenSized } from "./draw.js";

const WIDE = 136,
  HIGH = 30,
  TOP = 30,
  BOX = 96;

const REASONS = {
  beaten: (node, search) =>
    search.method === "greedy"
      ? "another word was more probable"
      : `beaten: ${search.settings.size ?? "enough"} continuations were more probable`,
  overtaken: () => "kept here, but at the next position continuations of others took all places",
  "ended low": () => "it ended, but not among the best at this position",
  "cannot win": (node) => `the search stopped: at best it could have reached ${fixed(node.bound)}, less than what was finished`,
  "ruled out": (node) => `a rule forbids it here: ${node.rule}`,
  "not drawn": () => "chance took another",
  "cut off": () => "left out before drawing (top_k, top_p or min_p)",
  displaced: () => "finished, but better ones filled the places",
  "too long": (node) =>
    node.state === "finished"
      ? "the longest output allowed was reached"
      : "the longest output allowed was reached, and it was not among the best",
};

/** What became of a hypothesis, in words. */
export function fate(node, search) {
  if (node.reason) return REASONS[node.reason]?.(node, search) ?? node.reason;
  if (node.state === "finished")
    return node.place === 0 ? `finished, and best of all: score ${fixed(node.score)}` : `finished: score ${fixed(node.score)}`;
  return node.best ? "kept: it leads to the answer" : "kept";
}

/** The tokens from the root to a node. */
export function wayTo(nodes, index) {
  const way = [];
  for (let at = index; at !== null && at !== undefined && nodes[at].parent !== null; at = nodes[at].parent)
    way.unshift(nodes[at].token);
  return way;
}

export function textOf(nodes, index) {
  return mended(wayTo(nodes, index)).join("").trim() || "∅";
}

/** The name of a node's token: in the answer as part of it, elsewhere after what was written before. */
export function nameOf(nodes, index) {
  const way = wayTo(nodes, index),
    whole = nodes[index].best
      ? wayTo(
          nodes,
          nodes.findLastIndex(({ best }) => best),
        )
      : way;
  const from = Math.max(0, way.length - MOST_PARTS);
  return names(whole.slice(from, way.length + MOST_PARTS - 1))[way.length - 1 - from];
}

/** The tree up to some position, of which `now` is shown; `pick(index)` when a node is chosen. */
export function tree(search, until, now, picked, pick) {
  const places = placed(search.nodes, until);
  const columns = Math.max(...places.map((own) => own.column)) + 1,
    rows = Math.max(...places.map((own) => own.row)) + 1;
  const wide = columns * WIDE + 20,
    high = TOP + rows * HIGH + 10;
  const byIndex = new Map(places.map((own) => [own.index, own]));
  const heads = Array.from({ length: columns }, (_, column) =>
    svg("text", {
      class: column === now ? "position now" : "position",
      x: column * WIDE + 8,
      y: 16,
      text: column ? `position ${column}` : "start",
    }),
  );
  const drawn = places.map((own) => node(search, own, byIndex.get(own.node.parent), own.index === picked, pick));
  const order = [...drawn].sort(
    (one, other) => Number(one.classList.contains("best")) - Number(other.classList.contains("best")),
  );
  const drawing = svg(
    "svg",
    {
      class: "tree",
      width: wide,
      height: high,
      viewBox: `0 0 ${wide} ${high}`,
      role: "group",
      "aria-label": "The tree of hypotheses; the table below has this position's",
    },
    heads,
    order,
  );
  const frame = el("div", { class: "scroll", role: "region", "aria-label": "Tree" }, drawing);
  whenSized(frame, () => {
    const end = (now + 1) * WIDE + 20;
    if (end > frame.scrollLeft + frame.clientWidth || now * WIDE < frame.scrollLeft)
      frame.scrollLeft = Math.ceil((end - frame.clientWidth) / WIDE) * WIDE;
  });
  return frame;
}

function placed(nodes, until) {
  const filled = [];
  return nodes
    .map((node, index) => ({ node, index, column: node.position }))
    .filter(({ column }) => column <= until)
    .map((own) => ({ ...own, row: (filled[own.column] = (filled[own.column] ?? -1) + 1) }));
}

function node(search, { node: own, index, column, row }, parent, isPicked, pick) {
  const x = column * WIDE + 4,
    y = TOP + row * HIGH;
  const classes = [own.state, own.best && "best", isPicked && "picked"].filter(Boolean).join(" ");
  const parts = [
    svg("rect", { x, y, width: BOX, height: HIGH - 4 }),
    svg("text", { x: x + 6, y: y + 12, text: clipped(column ? nameOf(search.nodes, index) : "start") }),
  ];
  if (column) parts.push(svg("text", { class: "figure", x: x + 6, y: y + 23, text: figures(own) }));
  if (parent) {
    const [fromX, fromY, toY] = [parent.column * WIDE + 4 + BOX, TOP + parent.row * HIGH + HIGH / 2 - 2, y + HIGH / 2 - 2],
      bend = (fromX + x) / 2;
    parts.unshift(svg("path", { d: `M${fromX} ${fromY} C${bend} ${fromY} ${bend} ${toY} ${x} ${toY}` }));
  }
  if (!column) return svg("g", { class: classes }, parts);
  const label = `${textOf(search.nodes, index)}, log P ${fixed(own.total)}: ${fate(own, search)}`;
  return svg(
    "g",
    {
      class: classes,
      role: "button",
      tabindex: isPicked ? 0 : -1,
      "aria-label": label,
      key: isPicked ? "node" : null,
      on: { click: () => pick(index) },
    },
    svg("title", { text: label }),
    parts,
  );
}

function figures(own) {
  if (own.state === "finished") return `✓ score ${fixed(own.score)}`;
  return own.chance === undefined ? fixed(own.total) : `chance ${fixed(own.chance)}`;
}

function clipped(text) {
  return text.length > 12 ? `${text.slice(0, 11)}…` : text;
}
