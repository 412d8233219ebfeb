// The sub-layers of a layer as stages: attention (its own or cross) and feed-forward, with the sum and the norm around them.

import { add, largest, length, mixed, normed, product, read, sum } from "./arrays.js";
import { shade, signed, tinted } from "./colour.js";
import { button, el, fixed } from "./dom.js";
import { named, nothing, rowOf, stage } from "./cards.js";
import { span } from "./draw.js";
import { kindOf } from "./picks.js";

/** The norm before a sub-layer, where it stands there: {cards, read}. */
function before(model, name, x, norm) {
  if (model.norm_place !== "before") return { cards: [], read: x };
  const found = normed(x, model.norm, model.norm_epsilon, norm);
  return {
    cards: [
      normStage(
        model,
        `${name}-norm`,
        "Norm",
        x,
        found,
        "The sub-layer reads the normed vector; what it gives is added to the one before the norm.",
      ),
    ],
    read: found.values,
  };
}

export function normStage(model, name, title, x, found, says) {
  const layer = model.norm === "layer";
  return stage({
    name,
    title,
    formula: layer ? "(x − μ) / √(σ² + ε) · γ + β" : "x / √(mean of x² + ε) · γ",
    shape: `(${x.length})`,
    says: `${layer ? `μ = ${fixed(found.mean)}, σ = ${fixed(found.deviation)} of this word's own numbers; γ and β were learned.` : `The root of the mean square is ${fixed(found.deviation)}; γ was learned.`} ${says}`,
    strips: [
      { label: "x", values: x },
      { label: "normed", values: found.values },
    ],
    apart: true,
  });
}

/** What comes in plus what was made; normed after it where the norm stands there: {cards, x}. */
function after(model, name, x, output, norm) {
  const total = add(x, output);
  const card = stage({
    name: `${name}-add`,
    title: model.norm_place === "before" ? "Add" : "Add & norm",
    formula: "x + sublayer(x)",
    shape: `(${x.length})`,
    says: `The way round (residual connection): what came in, of length ${fixed(length(x), 1)}, plus what was made, of length ${fixed(length(output), 1)}.`,
    strips: [
      { label: "x", values: x },
      { label: "made", values: output },
      { label: "sum", values: total },
    ],
  });
  if (model.norm_place === "before") return { cards: [card], x: total };
  const found = normed(total, model.norm, model.norm_epsilon, norm);
  return {
    cards: [card, normStage(model, `${name}-norm`, "Norm", total, found, "This is what the next sub-layer reads.")],
    x: found.values,
  };
}

/** All stages of attention of one kind for one word: {cards, x}. */
export function attentionStages(app, deep, { kind, layer, head, place, x, own, pick, picked }) {
  const { model } = deep,
    record = deep.document.attention[kind],
    base = app.session.trace;
  const axes = base.axes(kind),
    name = kind === "cross" ? "cross" : "self";
  const first = before(model, name, x, own.norm);
  const cards = [...first.cards];
  const at = record ? record.layers.indexOf(layer) : -1,
    which = record ? record.heads.indexOf(head) : -1;
  if (at >= 0 && which >= 0 && record.q && record.rows.includes(place)) {
    const q = read(record.q).at(at, which).row(record.rows.indexOf(place));
    const k = read(record.k).at(at, record.kv[which]),
      v = read(record.v).at(at, record.kv[which]);
    const weights = base.weights(kind, layer, head).row(place),
      mask = base.mask(kind)?.row(place) ?? null;
    const scores = record.scores ? read(record.scores).at(at, which).row(place) : null;
    const key = picked >= 0 && picked < axes.columns.length ? picked : largest(weights);
    cards.push(vectorsStage(model, name, kind, head, { q, k, v, axes, place }));
    cards.push(scoresStage(model, name, { q, k, scores, axes, place, key, pick }));
    cards.push(maskStage(name, { scores, mask, axes, place, key, pick }));
    const single = app.state.head > 0 || record.heads.length === 1,
      row = single ? "This is the row" : "Its row is averaged with those of the other heads in the one",
      shows = kind === kindOf(app) ? `${row} that Attention shows.` : "";
    cards.push(softmaxStage(name, { scores, mask, weights, axes, key, pick, shows }));
    cards.push(sumStage(name, { weights, v, axes }));
    cards.push(joinedStage(base, record, name, { kind, layer, at, head, place }));
  } else
    cards.push(
      nothing("Q, K, V and scores", `Not in this trace: ${base.missing("qkv") ?? "they were not recorded for this word"}.`),
    );
  const output = read(own.output).row(deep.document.vectors[kind === "encoder" ? "encoder" : "decoder"].rows.indexOf(place));
  cards.push(
    stage({
      name: `${name}-out`,
      title: "Projection",
      formula: "Concat(head₁ … headₕ) Wᴼ",
      shape: `(${output.length})`,
      says: "A matrix that was learned mixes what the heads found into one vector as wide as the word's own.",
      strips: [{ label: "output", values: output }],
    }),
  );
  const last = after(model, name, x, output, own.norm);
  return { cards: [...cards, ...last.cards], x: last.x };
}

function vectorsStage(model, name, kind, head, { q, k, v, axes, place }) {
  const limit = span(q, k.values, v.values),
    keys = kind === "cross" ? "the encoder's output (memory)" : "the same words";
  const turned = model.positions === "rotary" && kind !== "cross" ? " Rotary positions have turned q and k already." : "";
  return stage({
    name: `${name}-qkv`,
    title: `Q, K, V of head ${head + 1}`,
    formula: "Q = XW^Q,  K = XW^K,  V = XW^V",
    shape: `q (${q.length}), K and V (${k.shape.join(", ")})`,
    says: `The query is like a word looking for other words; a key is like a word being looked at; a value is what it has to tell. Keys and values come from ${keys}.${turned}`,
    strips: [{ label: `q of ${axes.rows[place]}`, values: q }],
    body: el("div", { class: "maps" }, named("K", axes.columns, k, limit, -1), named("V", axes.columns, v, limit, -1)),
  });
}

function scoresStage(model, name, { q, k, scores, axes, place, key, pick }) {
  const values = scores ?? Float32Array.from(axes.columns, (_, at) => sum(product(q, k.row(at))) * model.attention_scale),
    limit = span(values);
  const parts = product(q, k.row(key)),
    dot = sum(parts),
    scaled = dot * model.attention_scale,
    bias = values[key] - scaled;
  const equation = `${axes.rows[place]} · ${axes.columns[key]}: q·k = ${fixed(dot)}, × ${fixed(model.attention_scale, 4)} = ${fixed(scaled)}${Math.abs(bias) > 0.02 + Math.abs(scaled) * 0.01 ? `, + bias of position ${fixed(bias)} = ${fixed(values[key])}` : ""}`;
  return stage({
    name: `${name}-scores`,
    title: "Scores",
    formula: "QKᵀ / √dₖ",
    shape: `(${values.length}): a row of (${axes.rows.length}, ${axes.columns.length})`,
    says: `The query's dot product with every key, divided by √dₖ = ${fixed(1 / model.attention_scale, 2)} so that it does not grow with the width. Pick a word to see its product.`,
    lead: [
      rowOf("Scores", axes.columns, [{ name: "score", values, paint: (value) => tinted(signed(value / limit)) }], key, pick),
      el("p", { class: "equation", text: equation }),
    ],
    strips: [
      { label: `k of ${axes.columns[key]}`, values: k.row(key) },
      { label: "q × k, number by number", values: parts, note: `sum ${fixed(dot)}` },
    ],
  });
}

function maskStage(name, { scores, mask, axes, place, key, pick }) {
  const hidden = (at) => mask && !mask[at],
    count = mask ? mask.filter((seen) => !seen).length : 0;
  const says = count
    ? `${axes.rows[place]} may not see ${count} of ${mask.length} words: those to come. Their scores become −∞.`
    : mask
      ? "A causal mask hides the words to come; for this one there are none."
      : "No mask here: every word may be seen.";
  const values = Float32Array.from(axes.columns, (_, at) => (hidden(at) ? -Infinity : (scores?.[at] ?? NaN)));
  const body =
    mask && scores ? rowOf("Scores after the mask", axes.columns, [{ name: "masked", values, hidden }], key, pick) : [];
  return stage({ name: `${name}-mask`, title: "Mask", formula: mask ? "scores + mask,  mask = −∞ or 0" : "", says, body });
}

function softmaxStage(name, { scores, mask, weights, axes, key, pick, shows }) {
  const lines = [],
    top = scores ? Math.max(...scores.filter((_, at) => !mask || mask[at])) : 0,
    hidden = (at) => mask && !mask[at];
  if (scores)
    lines.push({ name: "e^(score − max)", values: scores.map((score, at) => (hidden(at) ? 0 : Math.exp(score - top))), hidden });
  lines.push({ name: "weight", values: weights, paint: (value) => tinted(shade(value)), hidden });
  return stage({
    name: `${name}-softmax`,
    title: "Softmax",
    formula: "wᵢ = exp(sᵢ) / Σ exp(sⱼ)",
    shape: `(${weights.length}), sum ${fixed(sum(weights))}`,
    says: `The scores become weights: none below 0, together 1. ${shows}`.trim(),
    body: rowOf("Weights", axes.columns, lines, key, pick),
  });
}

function sumStage(name, { weights, v, axes }) {
  const order = [...weights.keys()].sort((one, other) => weights[other] - weights[one]);
  const parts = order
    .slice(0, 4)
    .filter((at) => weights[at] >= 0.005)
    .map((at) => `${fixed(weights[at])} ${axes.columns[at]}`);
  return stage({
    name: `${name}-sum`,
    title: "Weighted sum",
    formula: "softmax(QKᵀ / √dₖ) V",
    shape: `(${v.shape[1]})`,
    says: `The values, mixed by the weights: ${parts.join(" + ")}${order.length > parts.length ? " + …" : ""}. This is what the head found.`,
    strips: [{ label: "what the head gives", values: mixed(weights, v) }],
  });
}

function joinedStage(base, record, name, { kind, layer, at, head, place }) {
  const all = record.heads.map((own, which) =>
    mixed(base.weights(kind, layer, own).row(place), read(record.v).at(at, record.kv[which])),
  );
  const width = all[0].length,
    joined = Float32Array.from(all.flatMap((values) => [...values]));
  return stage({
    name: `${name}-heads`,
    title: "Heads joined",
    formula: "Concat(head₁ … headₕ)",
    shape: `(${record.heads.length} × ${width} = ${joined.length})`,
    says: `Every head has looked in its own way; side by side they are one vector again. Head ${head + 1} is numbers ${record.heads.indexOf(head) * width} to ${(record.heads.indexOf(head) + 1) * width - 1}.`,
    strips: [
      {
        label: "all heads",
        values: joined,
        lines: record.heads.slice(1).map((_, which) => (which + 1) * width),
        cell: (_, number) => `head ${record.heads[Math.floor(number / width)] + 1}, number ${number % width}`,
      },
    ],
  });
}

const ACTIVATIONS = {
  relu: "max(0, xW₁ + b₁) W₂ + b₂",
  gelu: "GELU(xW₁ + b₁) W₂ + b₂",
  silu: "SiLU(xW₁) W₂",
  swiglu: "(SiLU(xW₁) ∘ xW₃) W₂",
  geglu: "(GELU(xW₁) ∘ xW₃) W₂",
};

export function feedforwardStages(app, deep, stack, { place, x, own }) {
  const { model } = deep,
    row = deep.document.vectors[stack].rows.indexOf(place),
    base = app.session.trace;
  const first = before(model, "feed", x, own.norm),
    output = read(own.output).row(row),
    inner = read(own.inner)?.row(row);
  const strips = inner
    ? [
        { label: "inner, after the activation", values: inner },
        { label: "output", values: output },
      ]
    : [{ label: "output", values: output }];
  const awake = inner
    ? `${inner.filter((value) => Math.abs(value) > 1e-6).length} of ${inner.length} inner numbers are not 0.`
    : `The inner layer is not in this trace: ${base.missing("inner") ?? "it was not recorded"}.`;
  const card = stage({
    name: "feed",
    title: "Feed-forward",
    formula: ACTIVATIONS[model.activation] ?? `${model.activation}(xW₁ + b₁) W₂ + b₂`,
    shape: `(${x.length}) → (${model.feedforward}) → (${x.length})`,
    says: `Each word by itself: a wider layer, a bend, and back. Without the bend, layers of attention would stay linear mixes of values. ${awake}`,
    strips,
    apart: true,
  });
  const last = after(model, "feed", x, output, own.norm);
  return { cards: [...first.cards, card, ...last.cards], x: last.x };
}

/** Where the word goes from here. */
export function onward(text, press) {
  return el("p", {}, button(text, press, { class: "go", key: "onward" }));
}
