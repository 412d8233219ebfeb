// Positions: how each scheme tells a model where a word stands, as a picture and by how alike two positions are.

import { Tensor, length, product, read, sum } from "./arrays.js";
import { chart, numbers } from "./chart.js";
import { choice, el, fixed, fold, formula, intro, working } from "./dom.js";
import { heat, legend, span } from "./draw.js";
import { trouble } from "./trouble.js";

export const positions = { draw };

const WHY = [
  "Attention is permutation invariant: without positions, the same words in another order would be the same to it. So each word is made to carry some information about its position.",
  "A good scheme treats words that are close as close and distant ones as distant. Sines and cosines do that by a fixed formula; learned vectors find it in training; rotary positions turn queries and keys, so that only the distance between them counts.",
];
const SCHEMES = {
  sinusoidal: {
    name: "sinusoidal",
    formula: "PE(pos, 2i) = sin(pos / 10000^(2i/d)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/d))",
    says: "Each pair of numbers is a sine and a cosine, slower from pair to pair: the first tells neighbours apart, the last hardly moves within a sentence.",
  },
  rotary: {
    name: "rotary",
    formula: "(q₂ᵢ, q₂ᵢ₊₁) is turned by pos / 10000^(2i/dₖ), and k alike",
    says: "Each pair of a query's and a key's numbers is turned by an angle that grows with the position; their product knows only the difference. Shown are the cosines, then the sines, of the angles.",
  },
  learned: {
    name: "learned",
    formula: "x + P[pos]",
    says: "A vector for each position that was learned like a word's. What order they show, training has put there.",
  },
  alibi: {
    name: "ALiBi",
    formula: "scores − m · distance",
    says: "Nothing is added to words; each head lowers its scores by the distance, some steeply, some hardly.",
  },
  relative: {
    name: "relative",
    formula: "scores + b[distance]",
    says: "Each head has learned a bias for each distance, shared by distances that are far and alike.",
  },
};

function draw(app) {
  const found = app.session.schemes(),
    says = intro(
      "positions",
      "How a model knows where a word stands: one row for each position, one column for each number.",
      WHY,
    );
  if (found.working) return [says, working("The schemes are on their way")];
  if (found.problem) return [says, trouble(app, found.problem, () => app.retry())];
  const { schemes, model } = found.trace.document;
  if (!schemes) return [says, el("p", { class: "card", text: "The schemes are not in this trace." })];
  const there = Object.keys(SCHEMES)
    .filter((name) => schemes[name])
    .sort((one, other) => Number(other === schemes.own) - Number(one === schemes.own));
  const name = there.includes(app.state.scheme) ? app.state.scheme : there[0],
    scheme = schemes[name];
  const options = there.map((own) => [own, own === schemes.own ? `${SCHEMES[own].name} (this model's)` : SCHEMES[own].name]);
  return [
    says,
    el(
      "div",
      { class: "controls" },
      choice("scheme", "scheme", options, name, (own) => app.set({ scheme: own })),
    ),
    own(schemes.own, model),
    el("p", { class: "says" }, formula(SCHEMES[name].formula)),
    el("p", { class: "says muted", text: SCHEMES[name].says }),
    scheme.vectors ? vectors(app, schemes, name) : biases(scheme),
  ].filter(Boolean);
}

function own(name, model) {
  if (name === "recurrent")
    return el("p", {
      class: "card",
      text: `${model.name} is recurrent: it reads in order and needs no positions. These are for comparison.`,
    });
  return name === "none"
    ? el("p", { class: "card", text: `${model.name} is told nothing of positions. These are for comparison.` })
    : null;
}

/** The picked word, where it stands. */
function picked(app) {
  const {
      state,
      session: { trace },
    } = app,
    side = state.target >= 0 && (state.kind !== "encoder" || !trace.document.source) ? "target" : "source";
  const tokens = trace.document[side]?.tokens ?? [],
    at = state[side];
  return at >= 0 && at < tokens.length ? { at, name: trace.labels[side][at] } : null;
}

/** Columns in the order in which they are drawn: sines before cosines, which else would be stripes. At position 0 a sine is 0. */
function ordered(name, tensor) {
  const columns = Array.from({ length: tensor.shape[1] }, (_, at) => at);
  if (name !== "sinusoidal") return { columns, tensor };
  columns.sort((one, other) => Math.round(tensor.values[one]) - Math.round(tensor.values[other]) || one - other);
  const values = tensor.values.map((_, at) => tensor.values[at - (at % columns.length) + columns[at % columns.length]]);
  return { columns, tensor: new Tensor(tensor.shape, values) };
}

function vectors(app, schemes, name) {
  const { vectors: record, similarity } = schemes[name],
    { columns, tensor } = ordered(name, read(record)),
    [count, width] = tensor.shape,
    word = picked(app);
  const limit = span(tensor.values),
    marked = word && word.at < count ? word.at : null;
  const map = heat({
    values: tensor.values,
    rows: count,
    columns: width,
    limit,
    high: Math.max(4, Math.min(9, Math.round(420 / count))),
    label: "Every position",
    note: `(${count}, ${width}): positions down, ${name === "sinusoidal" ? "all sines, then all cosines" : "numbers"} across`,
    key: "positions",
    marked,
    cell: (row, column) => `position ${row}, number ${columns[column]}`,
  });
  const others = Object.keys(schemes).filter((other) => other !== name && schemes[other]?.similarity);
  const series = [name, ...others].map((other) => ({
    name: other,
    points: points(schemes[other].similarity),
    band: other === name ? band(similarity) : null,
  }));
  const strip =
    marked !== null &&
    heat({
      values: tensor.row(marked),
      columns: width,
      limit,
      label: `${word.name}, position ${marked}`,
      note: `(${width})`,
      cell: (_, at) => `number ${columns[at]}`,
    });
  return el(
    "div",
    { class: "columns wide" },
    el(
      "section",
      { class: "card" },
      map,
      el(
        "p",
        { class: "facts" },
        legend(limit),
        el("span", { text: word ? "the framed row is the picked word's" : "pick a word above to see its row" }),
      ),
      strip,
    ),
    el(
      "div",
      {},
      el(
        "section",
        { class: "card" },
        chart({ label: "Similarity by distance", series, x: "distance", y: "cosine", key: "similarity" }),
        el("p", {
          class: "facts",
          text: "the cosine between the vectors of two positions so far apart; where it depends on the place, the mean, and a band from the lowest to the highest",
        }),
        fold("similarity", "Numbers", () => numbers("Similarity by distance", "distance", series)),
      ),
      el("section", { class: "card" }, pairs(tensor)),
    ),
  );
}

function points({ distance, mean }) {
  return distance.map((at, place) => [at, mean[place]]);
}

function band({ distance, low, high }) {
  return distance.map((at, place) => [at, low[place], high[place]]);
}

/** How alike any two positions are. */
function pairs(tensor) {
  const [count] = tensor.shape,
    lengths = Array.from({ length: count }, (_, at) => length(tensor.row(at)) || 1),
    values = new Float32Array(count * count);
  for (let row = 0; row < count; row += 1)
    for (let column = 0; column < count; column += 1)
      values[row * count + column] = sum(product(tensor.row(row), tensor.row(column))) / (lengths[row] * lengths[column]);
  const map = heat({
    values,
    rows: count,
    columns: count,
    limit: 1,
    high: Math.max(4, Math.min(8, Math.round(384 / count))),
    label: "Every pair of positions",
    note: `(${count}, ${count}): cosine`,
    key: "pairs",
    cell: (row, column) => `positions ${row} and ${column}`,
  });
  map.classList.add("square");
  return map;
}

function biases({ bias, distance }) {
  const tensor = read(bias),
    [heads, width] = tensor.shape,
    limit = span(tensor.values);
  const series = Array.from({ length: Math.min(heads, 8) }, (_, head) => ({
    name: `head ${head + 1}`,
    points: distance.map((at, place) => [at, tensor.row(head)[place]]),
  }));
  return el(
    "div",
    { class: "columns wide" },
    el(
      "section",
      { class: "card" },
      heat({
        values: tensor.values,
        rows: heads,
        columns: width,
        limit,
        high: Math.max(8, Math.min(26, Math.round(300 / heads))),
        label: "Every head",
        note: `(${heads}, ${width}): heads down, distances across`,
        key: "positions",
        cell: (row, column) => `head ${row + 1}, distance ${distance[column]}`,
      }),
      el("p", { class: "facts" }, legend(limit)),
    ),
    el(
      "section",
      { class: "card" },
      chart({ label: "What is added to scores", series, x: "distance", y: "bias", key: "similarity" }),
      fold("similarity", "Numbers", () => numbers("Bias by distance", "distance", series)),
      el("p", { class: "facts", text: `from ${fixed(Math.min(...tensor.values))} to ${fixed(Math.max(...tensor.values))}` }),
    ),
  );
}
