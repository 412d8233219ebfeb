// What is picked, as each kind of attention sees it: who looks, and at whom.

/** The kind that is shown: what the address says where the model has it, else the one that looks furthest. */
export function kindOf(app) {
  const { kinds } = app.session.trace;
  return kinds.includes(app.state.kind) ? app.state.kind : (kinds.at(-1) ?? null);
}

/** Layer and head of a kind, counted from 0; head −1 is the average. */
export function headOf(app, kind) {
  const { layers, heads } = app.session.trace.extent(kind);
  const layer = layers[Math.min(app.state.layer, layers.length) - 1] ?? layers.at(-1);
  return { layer, head: app.state.head === 0 ? -1 : heads[Math.min(app.state.head, heads.length) - 1] };
}

/** What the lights of a view show: the attention that is drawn below them, and elsewhere how the model looked while it wrote. */
export function looksOf(app) {
  const {
    session: { trace },
    state: { view },
  } = app;
  if (!trace || (view !== "attention" && view !== "inside")) return trace?.looks ?? null;
  const kind = kindOf(app);
  if (!kind) return null;
  const { layer, head } = headOf(app, kind),
    which = view === "inside" ? insideHead(app) : head;
  const weights = trace.weights(kind, layer, which),
    { query, key } = trace.axes(kind);
  return weights && { weights, from: query, side: key, first: 0, kind, layer, head: which };
}

/** The head that is looked inside, counted from 0: an average has no dot product. */
export function insideHead(app) {
  return Math.max(0, Math.min(app.state.head || 1, app.session.trace.model.heads ?? 1) - 1);
}

/** The picked row and column, −1 where none is. */
export function cellOf(app, kind) {
  const { state } = app;
  return { row: kind === "encoder" ? state.source : state.target, column: kind === "cross" ? state.source : state.key };
}

/** What to change to pick a row and a column. */
export function cellChange(kind, row, column) {
  if (kind === "cross") return { kind, target: row, source: column };
  return kind === "encoder" ? { kind, source: row, key: column } : { kind, target: row, key: column };
}

const NAMES = { encoder: "encoder", decoder: "decoder", cross: "cross" };
const TITLES = {
  encoder: "self-attention: source words look at source words",
  decoder: "masked self-attention: each word looks at those before it",
  cross: "cross-attention: words being written look at the source",
};

export function kindOptions(trace) {
  return trace.kinds.map((kind) => [kind, NAMES[kind], TITLES[kind]]);
}
