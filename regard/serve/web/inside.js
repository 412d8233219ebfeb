// Inside: one word's way through a layer, from what comes in to what the next layer gets, with the numbers it was made of.

import { add, normed, read } from "./arrays.js";
import { bars, nothing, stage } from "./cards.js";
import { aside, button, choice, count, el, fixed, intro, working } from "./dom.js";
import { attentionStages, feedforwardStages, normStage, onward } from "./sublayer.js";
import { cellOf, insideHead } from "./picks.js";
import { trouble } from "./trouble.js";

export const inside = { draw };

const WHY = [
  "A word is a vector. In each layer it looks at the other words (attention), takes in what it found (add & norm), and is worked on by itself (feed-forward). What comes out has the shape of what went in, so layers can be stacked.",
  "Vectors are rounded to half precision on their way here. Blue is above 0, orange below; the strips of one stage share a scale.",
];

const MANY = 8; // words that a row has room for in half a sheet of paper

/** Where we are: the stack, layer and head (from 0), and the word's position. */
function place(app) {
  const {
      session: { trace },
      state,
    } = app,
    { stacks, model } = trace;
  const stack = stacks.length === 1 ? stacks[0] : state.kind === "encoder" ? "encoder" : "decoder",
    side = trace.side(stack);
  const { special, tokens } = trace.document[side],
    first = stack === "decoder" ? trace.given - 1 : Math.max(0, special.indexOf(false));
  const at = state[side] >= 0 && state[side] < tokens.length ? state[side] : first;
  return {
    stack,
    side,
    at,
    layer: Math.min(state.layer, model.layers[stack]) - 1,
    head: insideHead(app),
  };
}

function draw(app) {
  const { session } = app,
    { trace } = session,
    here = place(app),
    name = word(trace, here);
  const says = intro("inside", `The way of ${name} through layer ${here.layer + 1} of the ${here.stack}, number by number.`, WHY);
  const found = session.inside(here.layer);
  const rest = found.working
    ? [working("The vectors of this layer are on their way")]
    : found.problem
      ? [trouble(app, found.problem, () => app.retry())]
      : stages(app, found.trace, here);
  return [says, aside(trace.pass), controls(app, here), ...rest];
}

function word(trace, { stack, side, at }) {
  const own = trace.labels[side][at];
  return stack === "decoder"
    ? `position ${at} (reads “${own}”, writes “${trace.labels.next[at]}”)`
    : `“${own}” at position ${at}`;
}

function controls(app, here) {
  const { trace } = app.session,
    { model } = trace,
    parts = [];
  if (trace.stacks.length > 1)
    parts.push(
      choice(
        "stack",
        "stack",
        trace.stacks.map((own) => [own, own]),
        here.stack,
        (own) => app.set({ kind: own === "encoder" ? "encoder" : trace.kinds.includes("cross") ? "cross" : "decoder" }),
      ),
    );
  const numbers = (end) => Array.from({ length: end }, (_, at) => [String(at + 1), String(at + 1)]);
  if (model.layers[here.stack] > 1)
    parts.push(
      choice("layer", "layer", numbers(model.layers[here.stack]), String(here.layer + 1), (own) =>
        app.set({ layer: Number(own) }),
      ),
    );
  if (model.heads > 1)
    parts.push(choice("head", "head", numbers(model.heads), String(here.head + 1), (own) => app.set({ head: Number(own) })));
  return el("div", { class: "controls" }, parts);
}

function stages(app, deep, here) {
  const vectors = deep.document.vectors[here.stack],
    { trace } = app.session;
  const missing = trace.missing("vectors") ?? deep.missing("vectors");
  if (!vectors) return [nothing("No vectors", `The vectors are not in this trace: ${missing ?? "they were not asked for"}.`)];
  const row = vectors.rows.indexOf(here.at);
  if (row < 0) return [nothing("Not this word", "This word's vectors were not kept in the trace; pick another.")];
  const parts = vectors.states ? recurrent(app, deep, here, vectors, row) : transformer(app, deep, here, vectors, row);
  return [
    el(
      "div",
      { class: "inside" },
      contents(parts),
      el(
        "div",
        { class: Math.max(...Object.values(trace.labels).map((own) => own.length)) > MANY ? "path long" : "path" },
        parts.flatMap(([title, cards]) => [el("h2", { text: title }), ...cards]),
      ),
    ),
  ];
}

/** A list of the stages, to jump to. */
function contents(parts) {
  const jump = (card) => () =>
    card.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  return el(
    "nav",
    { class: "contents", "aria-label": "Stages" },
    parts.flatMap(([title, cards]) => [
      el("p", { class: "part", text: title }),
      ...cards
        .filter((card) => card.id)
        .map((card) =>
          button(card.getAttribute("aria-label"), jump(card), { "aria-label": `To ${card.getAttribute("aria-label")}` }),
        ),
    ]),
  );
}

function transformer(app, deep, here, vectors, row) {
  const own = vectors.layers.find((layer) => layer.layer === here.layer);
  const parts = [["Coming in", incoming(app, deep, here, vectors, row, own)]];
  if (!own?.input) return [...parts, ["Missing", [nothing("This layer", "It was not recorded; pick another layer.")]]];
  const common = { layer: here.layer, head: here.head, place: here.at };
  const pickKey = (kind) => (at) =>
    app.set(kind === "cross" ? { kind, source: at } : { key: at, ...(kind === "encoder" ? { kind } : {}) });
  const kind = here.stack,
    self = attentionStages(app, deep, {
      ...common,
      kind,
      x: read(own.input).row(row),
      own: own.attention,
      picked: cellOf(app, kind).column,
      pick: pickKey(kind),
    });
  parts.push([kind === "decoder" ? "Masked self-attention" : "Self-attention", self.cards]);
  let { x } = self;
  if (own.cross) {
    const cross = attentionStages(app, deep, {
      ...common,
      kind: "cross",
      x,
      own: own.cross,
      picked: cellOf(app, "cross").column,
      pick: pickKey("cross"),
    });
    parts.push(["Cross-attention", cross.cards]);
    x = cross.x;
  }
  const feed = feedforwardStages(app, deep, here.stack, { place: here.at, x, own: own.feedforward });
  parts.push(["Feed-forward", feed.cards]);
  parts.push(["Going on", outgoing(app, deep, here, vectors, feed.x)]);
  return parts;
}

function incoming(app, deep, here, vectors, row, own) {
  const { model, document } = deep,
    { tokens, ids } = document[here.side],
    token = app.session.trace.plain[here.side][here.at];
  if (here.layer > 0) {
    const values = own?.input ? read(own.input).row(row) : null;
    return [
      values
        ? stage({
            name: "input",
            title: "Input",
            shape: `(${tokens.length}, ${model.width}), row ${here.at}`,
            says: `What layer ${here.layer} gave for this word.`,
            strips: [{ label: "x", values }],
          })
        : nothing("Input", "Not in this trace."),
    ];
  }
  const embedding = read(vectors.embeddings).row(row),
    scale = model.embedding_scale;
  const cards = [
    stage({
      name: "embedding",
      title: "Embedding",
      formula: scale === 1 ? "E[id]" : "E[id] · √d",
      shape: `(${model.width}) of (${count(model.vocabulary)}, ${model.width})`,
      says: `“${token}” is number ${count(ids[here.at])} of ${count(model.vocabulary)}; that row of the embedding matrix is its vector${scale === 1 ? "" : `, times √${model.width} = ${fixed(scale, 2)}`}.`,
      strips: [{ label: `embedding of ${token}`, values: embedding }],
    }),
  ];
  if (vectors.positions) {
    const added = read(vectors.positions).row(row),
      total = add(embedding, added);
    cards.push(
      stage({
        name: "position",
        title: "+ position",
        formula:
          model.positions === "sinusoidal" ? "PE(pos, 2i) = sin(pos / 10000^(2i/d)),  PE(pos, 2i+1) = cos(…)" : "x + P[pos]",
        shape: `(${model.width})`,
        says: `Attention knows nothing of order, so each word carries where it stands: the vector of position ${here.at} is added.`,
        strips: [
          { label: "embedding", values: embedding },
          { label: `position ${here.at}`, values: added },
          { label: "sum", values: total },
        ],
      }),
    );
    if (vectors.embedding_norm)
      cards.push(
        normStage(
          model,
          "embedding-norm",
          "Norm",
          total,
          normed(total, model.norm, model.norm_epsilon, vectors.embedding_norm),
          "This goes into the first layer.",
        ),
      );
  } else {
    const how = {
      rotary: "queries and keys are turned by an angle that grows with the position",
      alibi: "scores are lowered by the distance",
      relative: "scores get a learned bias by the distance",
    }[model.positions];
    cards.push(
      stage({
        name: "position",
        title: "Position",
        says: how
          ? `Nothing is added here: positions are told inside attention, where ${how}.`
          : "This model is told nothing of positions.",
      }),
    );
  }
  return cards;
}

function outgoing(app, deep, here, vectors, x) {
  const { model } = deep,
    { trace } = app.session,
    end = model.layers[here.stack];
  if (here.layer + 1 < end) {
    return [
      stage({
        name: "next",
        title: `To layer ${here.layer + 2}`,
        shape: `(${x.length})`,
        says: "As wide as what came in: the next layer does the same again, with matrices of its own.",
        strips: [{ label: "x", values: x }],
        body: onward(`On to layer ${here.layer + 2}`, () => {
          app.set({ layer: here.layer + 2 });
          scrollTo({ top: 0 });
        }),
      }),
    ];
  }
  const cards = [];
  if (vectors.norm)
    cards.push(
      normStage(
        model,
        "final",
        "Last norm",
        x,
        normed(x, model.norm, model.norm_epsilon, vectors.norm),
        `After the last layer of the ${here.stack}.`,
      ),
    );
  if (here.stack === "encoder" && trace.document.target) {
    cards.push(
      stage({
        name: "memory",
        title: "Memory",
        shape: `(${trace.document.source.tokens.length}, ${model.width})`,
        says: "The encoder is done. Its vectors, one for each source word, are the memory from which cross-attention takes keys and values.",
        body: onward("On to the decoder", () => {
          app.set({ kind: "cross", layer: 1 });
          scrollTo({ top: 0 });
        }),
      }),
    );
  } else cards.push(logits(trace, here));
  return cards;
}

/** From the last vector to words, or to labels. */
function logits(trace, here) {
  const { output } = trace.document,
    at = output?.places?.indexOf(here.at) ?? -1;
  if (output?.labels) {
    const rows = output.labels.map((name, place) => ({
      name,
      value: output.probabilities[place],
      title: `logit ${fixed(output.logits[place])}`,
    }));
    return stage({
      name: "logits",
      title: "Logits and softmax",
      formula: "softmax(pooled W + b)",
      shape: `(${rows.length})`,
      says: "One vector is made for the whole text; from it comes a logit for each label.",
      strips: [{ label: "the text's vector", values: read(output.pooled).values }],
      body: bars("Labels", "label", rows),
    });
  }
  if (at < 0) return stage({ name: "logits", title: "Logits", says: "At this place nothing is predicted." });
  const rows = trace.candidates(at).slice(0, 6);
  return stage({
    name: "logits",
    title: "Logits and softmax",
    formula: trace.model.tied ? "softmax(x Eᵀ)" : "softmax(x W)",
    shape: `(${count(trace.model.vocabulary)})`,
    says: `A dot product with every word of the vocabulary${trace.model.tied ? ", the embeddings again," : ""} gives the logits; softmax makes probabilities of them.`,
    body: bars("Candidates", "word", rows),
  });
}

function recurrent(app, deep, here, vectors, row) {
  const { model, document } = deep,
    token = app.session.trace.plain[here.side][here.at],
    cards = [],
    weights = app.session.trace.weights("cross", 0, 0);
  cards.push(
    stage({
      name: "embedding",
      title: "Embedding",
      formula: "E[id]",
      shape: `(${model.width})`,
      says: `The row of the embedding matrix for “${token}”.`,
      strips: [{ label: `embedding of ${token}`, values: read(vectors.embeddings).row(row) }],
    }),
  );
  cards.push(
    stage({
      name: "state",
      title: "State",
      formula: `hₜ = ${(model.cell ?? "rnn").toUpperCase()}(xₜ, hₜ₋₁)`,
      says:
        here.stack === "encoder"
          ? "What the network knows after this word; both directions side by side."
          : "What the network knows at this position, having read all words before.",
      strips: [{ label: "state", values: read(vectors.states).row(row) }],
    }),
  );
  if (vectors.contexts) {
    const names = app.session.trace.labels.source,
      best = weights
        ? [...weights.row(here.at).keys()]
            .sort((one, other) => weights.row(here.at)[other] - weights.row(here.at)[one])
            .slice(0, 3)
            .map((at) => `${fixed(weights.row(here.at)[at])} ${names[at]}`)
            .join(" + ")
        : "";
    cards.push(
      stage({
        name: "context",
        title: "Context",
        formula: "Σ αᵢ hᵢ",
        says: `The encoder's states mixed by additive attention: ${best} + …`,
        strips: [{ label: "context", values: read(vectors.contexts).row(row) }],
      }),
    );
  }
  const out = here.stack === "decoder" ? [["Going on", [logits(app.session.trace, here)]]] : [];
  return [[here.stack === "encoder" ? "The encoder" : "The decoder", cards], ...out];
}
