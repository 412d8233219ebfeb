// Attention: every layer and head in a grid, one of them large, as a table with numbers or as lines between words.

import { entropy, largest, sum } from "./arrays.js";
import { shade, tinted } from "./colour.js";
import { aside, button, choice, el, fixed, intro, svg, toggle } from "./dom.js";
import { legend, whenSized } from "./draw.js";
import { grid } from "./grid.js";
import { cellChange, cellOf, headOf, kindOf, kindOptions } from "./picks.js";

export const attention = { draw };

const SAYS = {
  encoder:
    "Self-attention in the encoder: how much each source word (a row) looks at each source word (a column) while its vector is made anew.",
  decoder: "Masked self-attention in the decoder: each word looks at itself and at the words before it, never at those to come.",
  cross: "Cross-attention: how much each word that is being written (a row) looks at each word of the source (a column).",
};
const SCALED = [
  "A word's query is compared with every word's key: scores = QKᵀ / √dₖ. Softmax makes each row sum to 1, and the row says how the values are mixed: Attention(Q, K, V) = softmax(QKᵀ / √dₖ) V.",
  "Each head has its own queries, keys and values, so that heads can look for different things at once. The average of all hides that; single heads show it.",
  "A mask sets scores to −∞ before the softmax, which makes those weights 0.",
];
const ADDITIVE = [
  "The decoder's state is compared with each state of the encoder by a small network: score = vᵀ tanh(W s + U h). Softmax makes each row sum to 1, and the row says how the encoder's states are mixed into the context.",
  "There is one head, and no dot product.",
];
const MANY = 9; // columns whose names stand upright

function draw(app) {
  const { trace } = app.session,
    kind = kindOf(app);
  if (!kind) return [el("p", { class: "card", text: none(trace) })];
  const record = trace.document.attention[kind];
  if (!record.weights)
    return [
      el("p", {
        class: "card",
        text: `The weights are not in this trace: ${trace.missing("weights") ?? "they were not asked for"}.`,
      }),
    ];
  const { layer, head } = headOf(app, kind),
    place = record.layers.indexOf(layer) + 1,
    single = head < 0 ? 0 : record.heads.indexOf(head) + 1;
  const pick = (own, which, keys) => {
    if (keys) app.focus = "grid";
    app.set({ kind, layer: own, head: which });
  };
  return [
    intro("attention", SAYS[kind], whyOf(record)),
    aside(trace.pass),
    controls(app, kind, place, single),
    el(
      "div",
      { class: "attention" },
      el(
        "section",
        { class: "card" },
        el("h2", { text: "Every layer and head" }),
        grid(record, { layer: place, head: single }, pick),
        el("p", { class: "facts" }, el("span", { text: "rows: layers · columns: heads" }), legend()),
      ),
      large(app, kind, layer, head),
    ),
  ];
}

function whyOf({ kind }) {
  return kind === "additive" ? ADDITIVE : SCALED;
}

function none(trace) {
  return trace.model.kind === "rnn"
    ? "This recurrent model has no attention: all that it knows of the source is one vector."
    : "There is no attention in this trace.";
}

function controls(app, kind, place, single) {
  const { trace } = app.session,
    { layers, heads } = trace.extent(kind);
  const parts = [];
  if (trace.kinds.length > 1) parts.push(choice("kind", "kind", kindOptions(trace), kind, (own) => app.set({ kind: own })));
  if (layers.length > 1)
    parts.push(
      choice(
        "layer",
        "layer",
        layers.map((own, at) => [String(at + 1), String(own + 1)]),
        String(place),
        (own) => app.set({ layer: Number(own) }),
      ),
    );
  if (heads.length > 1) {
    const options = [["0", "all", "the average of all heads"], ...heads.map((own, at) => [String(at + 1), String(own + 1)])];
    parts.push(choice("head", "head", options, String(single), (own) => app.set({ head: Number(own) })));
  }
  parts.push(
    choice(
      "shape",
      "as",
      [
        ["table", "table"],
        ["lines", "lines"],
      ],
      app.state.shape,
      (shape) => app.set({ shape }),
    ),
  );
  if (trace.mask(kind))
    parts.push(
      toggle("mask", "mask", app.state.mask === 1, (on) => app.set({ mask: on ? 1 : 0 }), "Hatches what may not be seen"),
    );
  return el("div", { class: "controls" }, parts);
}

function large(app, kind, layer, head) {
  const { trace } = app.session,
    weights = trace.weights(kind, layer, head),
    axes = trace.axes(kind);
  const title = `${kind === "cross" ? "Cross-attention" : `Self-attention of the ${kind}`}, layer ${layer + 1}, ${head < 0 ? (trace.extent(kind).heads.length > 1 ? "average of all heads" : "one head") : `head ${head + 1}`}`;
  const show = app.state.shape === "lines" ? lines : weightsTable;
  return el(
    "section",
    { class: "card big" },
    el("h2", { text: title }),
    show(app, kind, weights, axes),
    about(trace, kind, weights, axes),
    made(app, kind, weights, axes),
  );
}

/** What can be said of a head in a line: the text alternative of the picture. */
function about(trace, kind, weights, { rows, columns }) {
  const best = largest(weights.values),
    [row, column] = [Math.floor(best / columns.length), best % columns.length];
  const spread = sum(rows.map((_, at) => entropy(weights.row(at)))) / rows.length,
    mask = trace.mask(kind);
  const parts = [
    `strongest: ${rows[row]} looks at ${columns[column]} with ${fixed(weights.values[best])}`,
    `mean entropy ${fixed(spread, 2)} nats, of at most ln ${columns.length} = ${fixed(Math.log(columns.length), 2)}`,
  ];
  parts.push(
    mask
      ? `${mask.values.filter((seen) => !seen).length} of ${mask.values.length} cells are masked`
      : "no mask: every word may be seen",
  );
  return el("p", { class: "facts", text: parts.join(" · ") });
}

function weightsTable(app, kind, weights, { rows, columns }) {
  const { trace } = app.session,
    mask = trace.mask(kind),
    picked = cellOf(app, kind),
    target = trace.document.target;
  const focus = { row: Math.max(0, picked.row), column: Math.max(0, picked.column) };
  const heads = columns.map((name, at) =>
    el("th", { scope: "col", dir: "auto", class: at === picked.column ? "picked-word" : null }, el("span", { text: name })),
  );
  const body = rows.map((name, row) => {
    const values = weights.row(row);
    const cells = [...values].map((value, column) =>
      cell(app, kind, {
        value,
        row,
        column,
        names: [name, columns[column]],
        mask,
        picked,
        focus,
        size: [rows.length, columns.length],
      }),
    );
    const writes =
      kind === "decoder" && target
        ? el("span", { class: "writes", text: ` → ${trace.labels.next[row]}`, title: "what is written after it" })
        : null;
    return el(
      "tr",
      {},
      el("th", { scope: "row", dir: "auto", class: row === picked.row ? "picked-word" : null }, name, writes),
      cells,
      el("td", { class: "total", text: fixed(sum(values)) }),
    );
  });
  return el(
    "div",
    { class: "scroll", role: "region", "aria-label": "Weights" },
    el(
      "table",
      { role: "grid", class: columns.length > MANY ? "weights long" : "weights" },
      el("caption", { class: "unseen", text: "Rows look, columns are looked at; each row sums to 1" }),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, el("span", { class: "unseen", text: "looks at" })),
          heads,
          el("th", { scope: "col", title: "sum of the row" }, el("span", { text: "Σ" })),
        ),
      ),
      el("tbody", {}, body),
    ),
  );
}

function cell(app, kind, { value, row, column, names, mask, picked, focus, size }) {
  const hidden = mask && !mask.row(row)[column],
    here = row === focus.row && column === focus.column;
  const classes = [hidden && app.state.mask && "hidden", row === picked.row && column === picked.column && "picked"]
    .filter(Boolean)
    .join(" ");
  const move = (event) => {
    const [down, right] = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key] ?? [0, 0];
    if (event.key === "Enter") return app.set(cellChange(kind, row, column));
    if (event.shiftKey || (!down && !right)) return undefined;
    event.preventDefault();
    event.stopPropagation();
    app.focus = "cell";
    return app.set(
      cellChange(kind, Math.min(size[0] - 1, Math.max(0, row + down)), Math.min(size[1] - 1, Math.max(0, column + right))),
    );
  };
  return el("td", {
    class: classes || null,
    text: hidden && app.state.mask ? "0" : fixed(value),
    style: tinted(shade(value)),
    tabindex: here ? 0 : -1,
    key: here ? "cell" : null,
    title: hidden ? `${names[0]} may not see ${names[1]}` : `${names[0]} looks at ${names[1]} with ${value.toFixed(6)}`,
    on: {
      click: () => {
        app.focus = "cell";
        app.set(cellChange(kind, row, column));
      },
      keydown: move,
    },
  });
}

/** How the picked cell came about, in short; the rest is inside. */
function made(app, kind, weights, { rows, columns }) {
  const { trace } = app.session,
    { row, column } = cellOf(app, kind),
    additive = trace.document.attention[kind].kind === "additive";
  if (row < 0 || column < 0 || row >= rows.length || column >= columns.length)
    return el("p", {
      class: "facts",
      text: `Pick a cell to see ${additive ? "what was made of it" : "the dot product that made it"}.`,
    });
  const { layer, head } = headOf(app, kind),
    what = `${rows[row]} looks at ${columns[column]} with ${fixed(weights.row(row)[column])}`;
  if (additive)
    return explained(`${what}: by so much its state is part of the context.`, [
      button("The context", () => app.set({ view: "inside", kind, stage: "context" }), { class: "link", key: "made" }),
    ]);
  const inside = (which) => () =>
    app.set({ view: "inside", kind, layer: layer + 1, head: which + 1, stage: `${kind === "cross" ? "cross" : "self"}-scores` });
  if (head >= 0 || trace.extent(kind).heads.length === 1)
    return explained(`${what}: e to the power of its score, divided by the sum over the row.`, [
      button("The dot product behind it", inside(Math.max(0, head)), { class: "link", key: "made" }),
    ]);
  const { heads } = trace.extent(kind),
    each = heads.map((own) => trace.weights(kind, layer, own).row(row)[column]);
  return explained(
    `${what}: the average of its heads, each of which has a weight and a dot product of its own.`,
    heads.map((own, at) =>
      button(`head ${own + 1}: ${fixed(each[at])}`, inside(own), {
        class: "of-head",
        style: tinted(shade(each[at])),
        title: `The dot product behind it, in head ${own + 1}`,
        key: at === largest(each) ? "made" : null,
      }),
    ),
  );
}

function explained(text, links) {
  return el("div", { class: "made" }, el("p", { text }), el("p", { class: "links" }, links));
}

function lines(app, kind, weights, { rows, columns }) {
  const high = 30 + 27 * Math.max(rows.length, columns.length),
    picked = cellOf(app, kind);
  const drawing = svg("svg", {
    class: "lines",
    height: high,
    role: "img",
    "aria-label": "Lines from each word to those it looks at, the thicker the more; the table has the numbers",
  });
  whenSized(drawing, () => connect(app, kind, drawing, weights, rows, columns, picked, high));
  return el("div", { class: "scroll", role: "region", "aria-label": "Lines", tabindex: "0" }, drawing);
}

function connect(app, kind, drawing, weights, rows, columns, picked, high) {
  const wide = drawing.getBoundingClientRect().width;
  if (!wide) return;
  drawing.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  const left = wide * 0.34,
    right = wide * 0.66,
    at = (place) => 44 + 27 * place;
  const paths = [],
    words = [];
  rows.forEach((_, row) =>
    weights.row(row).forEach((weight, column) => {
      if (weight < 0.01) return;
      const bend = (left + right) / 2,
        way = `M${left + 6} ${at(column) - 5} C${bend} ${at(column) - 5} ${bend} ${at(row) - 5} ${right - 6} ${at(row) - 5}`;
      const path = svg(
        "path",
        { d: way, "stroke-width": 0.6 + 8 * weight },
        svg("title", { text: `${rows[row]} looks at ${columns[column]}: ${fixed(weight)}` }),
      );
      paths.push({ path, row, column, weight });
    }),
  );
  const show = (row, column) =>
    paths.forEach((own) => {
      const lit = (row < 0 || own.row === row) && (column < 0 || own.column === column);
      own.path.setAttribute("opacity", lit ? (row < 0 && column < 0 ? 0.2 : 0.45) + 0.55 * own.weight : 0.05);
    });
  const rest = () => show(picked.row, -1);
  const word = (name, x, place, anchor, side) =>
    words.push(
      svg("text", {
        x,
        y: at(place),
        "text-anchor": anchor,
        class: place === picked[side] ? "picked" : null,
        text: name,
        on: {
          pointerenter: () => (side === "row" ? show(place, -1) : show(-1, place)),
          pointerleave: rest,
          click: () => app.set(cellChange(kind, ...(side === "row" ? [place, picked.column] : [picked.row, place]))),
        },
      }),
    );
  columns.forEach((name, place) => word(name, left, place, "end", "column"));
  rows.forEach((name, place) => word(name, right, place, "start", "row"));
  const names = [
    svg("text", { class: "head", x: left, y: 16, "text-anchor": "end", text: "is looked at" }),
    svg("text", { class: "head", x: right, y: 16, text: kind === "cross" ? "is being written" : "looks" }),
  ];
  drawing.replaceChildren(...paths.map((own) => own.path), ...names, ...words);
  rest();
}
