// Steps: the decoder at work, one position after the other: what it could have written, what it kept, and why the rest was dropped.

import { bars } from "./cards.js";
import { aside, button, el, fixed, formula, intro, say, short, table } from "./dom.js";
import { fate, nameOf, textOf, tree } from "./tree.js";

export const steps = { draw };

const SAYS = {
  beam: "At each position the decoder gives every word a probability. Beam search keeps the few most probable hypotheses and goes on with each of them.",
  greedy: "At each position the decoder gives every word a probability, and one of them is taken",
  sampling: "At each position the decoder gives every word a probability, and one is drawn by chance.",
};
const WHY = [
  "The decoder begins with a start token. In a loop it gives one token at a time, and what was given is its input at the next position, until it gives the end token or the output is long enough.",
  "Taking the best word each time (greedy) can lead into a corner: a word that looks second best may have the better continuation. Beam search keeps the best B sequences instead, by log P, the sum of the logarithms of their words' probabilities.",
  "Finished hypotheses are compared by score = log P / lengthᵅ, since longer ones have multiplied more probabilities.",
];
const PACE = 900; // milliseconds for a position while it plays
const player = { timer: null };

function stop() {
  clearInterval(player.timer);
  player.timer = null;
}

/** Starts or stops. */
export function play(app) {
  if (player.timer) stop();
  else {
    const { trace } = app.session;
    if (!trace?.document.target) return;
    if (stepOf(app) + 1 >= stepsOf(trace)) app.set({ target: trace.given - 1, node: -1 });
    player.timer = setInterval(() => {
      const next = stepOf(app) + 1,
        now = app.session.trace;
      if (app.state.view !== "steps" || !now || next >= stepsOf(now)) {
        stop();
        app.redraw();
        return;
      }
      app.set({ target: now.given - 1 + next, node: -1 });
    }, PACE);
  }
  app.redraw();
}

function stepsOf(trace) {
  return trace.document.target.tokens.length - trace.given + 1;
}

function stepOf(app) {
  const { trace } = app.session;
  return Math.min(stepsOf(trace) - 1, Math.max(0, app.state.target - trace.given + 1));
}

function draw(app) {
  const { trace } = app.session,
    { document } = trace;
  if (!document.target) return atOnce(trace);
  const step = stepOf(app),
    search = document.search;
  return [
    intro("steps", says(trace), WHY),
    aside(trace.pass),
    controls(app, step),
    el(
      "div",
      { class: "steps" },
      candidates(app, step),
      search
        ? beam(app, search, step)
        : el("p", { class: "card", text: "How the output was searched for is not in this trace." }),
    ),
  ];
}

/** What the search does, and of a greedy one only what the probabilities below bear out. */
function says(trace) {
  const method = trace.document.search?.method ?? "greedy",
    chosen = (trace.document.output?.chosen ?? []).slice(trace.given - 1);
  if (method !== "greedy") return SAYS[method];
  const best = chosen.filter(({ rank }) => rank === 0).length;
  if (best === chosen.length) return `${SAYS.greedy}: the most probable.`;
  return `${SAYS.greedy}: by the numbers below the most probable at ${best} of ${chosen.length} positions.`;
}

/** Why a greedy search wrote a word that is not the first here: the numbers that it went by, where they are known. */
function though(trace, chosen, name, step) {
  const search = trace.document.search;
  if (search?.method !== "greedy" || !chosen?.rank) return null;
  const { written_in: precision } = trace.model,
    own = search.nodes.find((node) => node.best && node.position === step + 1);
  const known = own ? `: there it had ${fixed(Math.exp(own.log_probability))}` : "";
  return el("p", {
    class: "aside",
    text: `${name} is not the most probable here. It was chosen by the pass that wrote${precision ? `, in ${precision}` : ""}${known}.`,
  });
}

function controls(app, step) {
  const { trace } = app.session,
    end = stepsOf(trace),
    first = trace.given - 1;
  const go = (to) => {
    stop();
    app.set({ target: first + to, node: -1 });
  };
  const move = (event) => {
    stop();
    app.set({ target: first + Number(event.target.value), node: -1 });
  };
  const playing = player.timer !== null;
  return el(
    "div",
    { class: "player", role: "group", "aria-label": "Positions" },
    button("◀", () => go(step - 1), { key: "before", disabled: step === 0, "aria-label": "The position before" }),
    button(playing ? "❚❚" : "▶ play", () => app.play(), { key: "play", class: "go", "aria-label": playing ? "Stop" : "Play" }),
    button("▶", () => go(step + 1), { key: "next", disabled: step === end - 1, "aria-label": "The next position" }),
    el("input", {
      type: "range",
      min: 0,
      max: end - 1,
      value: step,
      key: "range",
      "aria-label": "Position",
      "aria-valuetext": `position ${step + 1} of ${end}`,
      on: { input: move },
    }),
    el("span", { text: `position ${step + 1} of ${end}`, role: "status" }),
  );
}

function candidates(app, step) {
  const { trace } = app.session,
    { output, target } = trace.document,
    place = trace.given - 1 + step;
  const read = trace.labels.target.slice(0, place + 1).join(" "),
    next = trace.labels.next[place];
  const soFar = el(
    "p",
    { class: "so-far", dir: "auto" },
    el("span", { class: "muted", text: "read so far: " }),
    read.length > 160 ? `… ${read.slice(-160)}` : read,
    el("span", { class: "muted", text: " → writes " }),
    el("b", { text: next }),
  );
  const at = output ? output.places.indexOf(place) : -1;
  if (at < 0)
    return el(
      "section",
      { class: "card" },
      el("h2", { text: "Candidates" }),
      soFar,
      el("p", { text: "Their probabilities are not in this trace." }),
    );
  const chosen = output.chosen?.[at],
    name = trace.plain.next[place],
    rows = trace.candidates(at);
  if (chosen && chosen.rank >= rows.length)
    rows.push({ name: `${name} (rank ${chosen.rank + 1})`, value: chosen.probability, chosen: true });
  const rest = 1 - rows.reduce((total, row) => total + row.value, 0);
  rows.push({ name: "all others", value: Math.max(0, rest) });
  return el(
    "section",
    { class: "card" },
    el("h2", { text: "Candidates" }),
    soFar,
    bars(`Candidates at position ${step + 1}`, "word", rows),
    though(trace, chosen, name, step),
    el(
      "p",
      { class: "facts" },
      formula("pᵢ = exp(logitᵢ) / Σ exp(logitⱼ)"),
      el("span", { text: `entropy ${fixed(output.entropy[at], 2)} nats` }),
    ),
  );
}

function beam(app, search, step) {
  const last = step === stepsOf(app.session.trace) - 1,
    until = last ? Math.max(...search.nodes.map((own) => own.position)) : step + 1;
  const pick = (node) => {
    app.focus = "node";
    app.set({ node: node === app.state.node ? -1 : node });
  };
  const name = {
    beam: `Beam search, ${search.settings.size} wide`,
    greedy: "Greedy search",
    sampling: `Sampling, temperature ${search.settings.temperature ?? 1}`,
  }[search.method];
  const key =
    search.method === "sampling"
      ? "drawn words are blue; figures are the chances they were drawn with"
      : "the answer is blue, pruned hypotheses are grey; figures are log P so far";
  return el(
    "section",
    { class: "card" },
    el("h2", { text: name }),
    tree(search, until, step + 1, app.state.node, pick),
    el("p", { class: "facts", text: key }),
    picked(app, search),
    fates(app, search, step + 1, pick),
  );
}

function picked(app, search) {
  const own = search.nodes[app.state.node];
  if (!own || own.parent === null) return null;
  const way = [
    `log P ${fixed(own.total)} = ${fixed(search.nodes[own.parent].total)} before + ${fixed(own.log_probability)} for ${nameOf(search.nodes, app.state.node)}`,
  ];
  if (own.rank !== undefined) way.push(`ordered by ${fixed(own.rank)}`);
  if (own.chance !== undefined) way.push(`drawn with chance ${fixed(own.chance)}`);
  const text = `${textOf(search.nodes, app.state.node)}: ${fate(own, search)}`;
  say(text);
  return el(
    "div",
    { class: "made" },
    el("p", {}, el("b", { text: textOf(search.nodes, app.state.node) }), ` ${fate(own, search)}`),
    el("p", { class: "muted", text: way.join(" · ") }),
  );
}

/** Every hypothesis that was looked at at this position, and what became of it. */
function fates(app, search, position, pick) {
  const here = search.nodes.map((node, index) => ({ node, index })).filter(({ node }) => node.position === position);
  const rows = here.map(({ node, index }) => [
    button(textOf(search.nodes, index), () => pick(index), { class: "link", key: `fate-${index}`, dir: "auto" }),
    short(Math.exp(node.log_probability)),
    fixed(node.total),
    fate(node, search),
  ]);
  const made = table(
    `Hypotheses at position ${position}`,
    ["hypothesis", "p of its last word", "log P", "what became of it"],
    rows,
    { class: "dropped" },
  );
  made.querySelectorAll("tbody tr").forEach((row, at) => {
    const { node, index } = here[at];
    row.className = [node.state, node.best && "best", index === app.state.node && "picked"].filter(Boolean).join(" ");
  });
  return el("div", { class: "made" }, el("h3", { text: `Hypotheses at position ${position}` }), made);
}

/** Models that read take one step: from logits to probabilities. */
function atOnce(trace) {
  const { output } = trace.document;
  const says = intro("at-once", "This model reads a text at once, so there is one step: its logits, and softmax over them.", [
    "An encoder sees all words together, those before and those after. Only a decoder writes one word after the other.",
  ]);
  if (!output) return [says, el("p", { class: "card", text: "It gives a vector, and no probabilities." })];
  const cards = output.labels
    ? [["The labels", output.labels.map((name, at) => [name, fixed(output.logits[at]), fixed(output.probabilities[at])])]]
    : output.places.map((place, at) => [
        `For ${trace.plain.source[place]} at position ${place}`,
        trace.candidates(at).map(({ name, value }, rank) => [name, fixed(output.logits[at][rank]), fixed(value)]),
      ]);
  return [
    says,
    el(
      "div",
      { class: "columns" },
      cards.map(([title, rows]) =>
        el(
          "section",
          { class: "card" },
          el("h2", { text: title }),
          table(title, ["", "logit", "probability"], rows),
          el("p", { class: "facts" }, formula("pᵢ = exp(logitᵢ) / Σ exp(logitⱼ)")),
        ),
      ),
    ),
  ];
}
