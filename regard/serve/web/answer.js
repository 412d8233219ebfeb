// Answer: what the model says, how sure it is of each word, what else it might have said, and what each word looked at.

import { read } from "./arrays.js";
import { bars } from "./cards.js";
import { signed, css } from "./colour.js";
import { button, copy, el, fixed, fold, formula, intro, pressed, table } from "./dom.js";
import { heat, span } from "./draw.js";
import { stands, told } from "./light.js";
import { guessed, mended, names, shown, wordsOf } from "./trace.js";

export const answer = { early: true, draw };

const SAYS = {
  translate: [
    "The translation. The shorter the line beneath a word, and the warmer its ground, the less sure the model was. Point at a word to see what it looked at.",
    [
      "A word's probability is what softmax gives it among all words of the vocabulary, after everything before it; a word of several tokens has the product of theirs.",
      "What it looked at are the weights of cross-attention in the last layer, averaged over its heads: queries come from the decoder, keys and values from the encoder.",
    ],
  ],
  generate: [
    "How the text goes on. The shorter the line beneath a word, the less sure the model was. Point at a word to see what it looked at.",
    [
      "Each word is drawn from the probabilities that the decoder gives after all words before it, so another seed gives another text.",
      "What it looked at are the weights of the last layer, averaged over its heads, of the position that wrote the word.",
    ],
  ],
  classify: [
    "The label that the model gives this text, and how likely it finds each one. Point at a word to see what it looked at.",
    [
      "The encoder gives every word a vector; one vector for the whole text is made of them, and softmax over its logits gives each label a probability.",
    ],
  ],
  fill: [
    "The words that the model puts where the text says [MASK], best first. Point at a word to see what it looked at.",
    [
      "The encoder sees the words on both sides. At the masked place its vector is compared with that of every word of the vocabulary: the logits, and softmax over them.",
    ],
  ],
  embed: [
    "One vector for the whole text: texts that mean alike have vectors that point alike.",
    ["It is made of the vectors that the encoder gives each word, which have taken in the others by attention."],
  ],
};

const ADDITIVE =
  "What it looked at are the weights of additive attention: the decoder's state is compared with each state of the encoder by a small network, and softmax over these scores says how the encoder's states are mixed.";
const NO_LOOKS = "This recurrent model has no attention: all that it knows of the source is one vector.";

function draw(app) {
  const { session } = app,
    own = session.verb;
  const body = { translate: written, generate: written, classify, fill, embed }[own](app, session.answer);
  const line = el("p", { class: "told", "aria-live": "polite" });
  app.pointed = (said) => {
    line.textContent = !session.trace
      ? ""
      : said
        ? pointedAt(session.trace, said)
        : "Point at a word, or walk through them with Tab.";
  };
  app.pointed(app.resting());
  const [says, reasons] = SAYS[own],
    why = session.trace?.model.kind === "rnn" ? [reasons[0], session.trace.looks ? ADDITIVE : NO_LOOKS] : reasons,
    more = session.pieces.length > 1 ? " Press another part of the text to look into that one." : "";
  return [intro(`answer-${own}`, says + more, why), ...body(line)];
}

function pointedAt(trace, said) {
  const [side, places] = said.split(":"),
    { source, target } = trace.document;
  const tokens = side === "target" ? target.next : source.tokens; // a language model writes the word after the one it reads
  const own = mended(places.split(",").map((place) => tokens[place] ?? ""));
  return `${shown(own.join(""))} ${told(trace, said)}`;
}

/** Words as buttons in a running text; spaces and line breaks stay between them. */
function running(words, make, first = true) {
  return words.flatMap((word, place) => {
    const text = word.text.trim(),
      parted = !/^[\p{P}\p{S}]*$/u.test(text) || text.startsWith("<"); // some tokenizers leave spaces to the writer
    const between = /^\s+/.exec(word.text)?.[0] ?? (parted ? " " : "");
    return [first && place === 0 ? null : document.createTextNode(between), text ? make(word, text, place) : null];
  });
}

function wordButton(app, side, looks, seen, text, extra = {}) {
  const picked = looks.includes(app.state[side]),
    place = looks[0];
  const { class: classes = "", ...rest } = extra;
  return pressed(text, () => app.pick(side, picked ? -1 : place), {
    class: `word ${classes}`,
    "aria-pressed": String(picked),
    key: `word-${side}-${place}`,
    ...stands(side, looks, seen),
    ...rest,
  });
}

/** A text and the words around it, of which each part that is answered on its own can be picked. */
function inParts(app, side, texts, now) {
  const { pieces, around, at } = app.session;
  if (pieces.length < 2) return now;
  const other = (text, place) =>
    pressed(text, () => app.set({ part: place + 1 }), {
      class: "part",
      key: `part-${side}-${place}`,
      title: `part ${place + 1} of ${pieces.length}: look into it`,
    });
  return [
    around[0],
    texts.map((text, place) => [
      place === at ? el("span", { class: "part now", "aria-current": "true" }, now) : other(text, place),
      around[place + 1],
    ]),
  ];
}

/** The text that was read, word by word. */
function sourceWords(app) {
  const { trace } = app.session,
    { source } = trace.document;
  return running(wordsOf(mended(source.tokens), source.words), ({ places }, text) =>
    wordButton(app, "source", places, places, text, { class: source.special[places[0]] ? "special" : "" }),
  );
}

const BROKEN = /\ufffd|\\x[0-9a-f]{2}/; // a token that is part of a character

/** Words of an output with their probabilities: those of their tokens multiplied. */
export function sureWords(tokens, logs, numbers, text) {
  const words = wordsOf(mended(tokens), numbers);
  for (const word of words)
    word.probability = Math.exp(word.places.reduce((total, place) => total + (logs[place] ?? -Infinity), 0));
  return words.some((word) => BROKEN.test(word.text)) ? spelled(words, text) : words;
}

/** Where tokens are parts of characters, what they make together is found in the text again. */
function spelled(words, text) {
  let from = 0;
  words.forEach((word, place) => {
    const whole = BROKEN.test(word.text) ? null : word.text.trim();
    const next =
      whole ??
      words
        .slice(place + 1)
        .find((other) => !BROKEN.test(other.text) && other.text.trim())
        ?.text.trim();
    const found = next === undefined ? -1 : text.indexOf(next, from),
      at = found < 0 ? text.length : found;
    if (whole === null) word.text = text.slice(from, at);
    from = whole === null ? at : at + whole.length;
  });
  return words;
}

/** How a word looks that is so probable. */
export function sure(probability) {
  const warm = signed(-0.5 * (1 - probability)); // no stronger, so that ink can be read on it by day and in the dark
  return { style: { "--sure": probability, "--warm": css(warm) }, title: `probability ${fixed(probability)}` };
}

function written(app, found) {
  const { trace, verb } = app.session,
    target = trace?.document.target,
    given = target?.given ?? 1;
  const numbers = target ? target.next_words.slice(given - 1) : guessed(found.tokens);
  const words = sureWords(found.tokens, found.log_probabilities, numbers, found.text);
  const make = (word, text) => {
    const looks = word.places.map((place) => place + given - 1),
      seen = trace && !trace.document.source ? word.places.map((place) => place + given) : looks;
    return wordButton(app, "target", looks, seen, text, { class: "sure", ...sure(word.probability) });
  };
  const { pieces } = app.session,
    own = running(words, make, verb !== "generate");
  const output = el(
    "p",
    { class: "output", dir: "auto", lang: app.state.to || null, "aria-label": "Answer" },
    inParts(
      app,
      "target",
      pieces.map(({ answer }) => answer.text),
      own,
    ),
  );
  if (verb === "generate") output.prepend(el("span", { class: "prompt" }, prompt(app, trace)));
  const read =
    verb === "translate" &&
    (trace || pieces.length > 1) &&
    inParts(
      app,
      "source",
      pieces.map(({ given }) => given),
      trace ? sourceWords(app) : [document.createTextNode(app.session.piece.given)],
    );
  return (line) => [
    el(
      "div",
      { class: pieces.length > 1 ? "card answer long" : "card answer" },
      read && el("p", { class: "input", dir: "auto", "aria-label": "Source" }, read),
      output,
      copying(() => (verb === "generate" ? whole(app, found) : app.session.text)),
      line,
      facts(app, found),
      verb === "generate" && another(app),
    ),
    el("div", { class: "columns" }, alternatives(app, found), tokenTable(app, found)),
  ];
}

/** The prompt and what was written after it. */
function whole(app, { text }) {
  const { text: given } = app.session.trace?.document ?? app.state;
  return given + (!given || /\s$/.test(given) || /^\s/.test(text) ? "" : " ") + text;
}

function copying(text) {
  return el("p", { class: "copying" }, copy("Copy", text));
}

function prompt(app, trace) {
  if (!trace) return app.state.text;
  const { target } = trace.document,
    given = { tokens: mended(target.tokens.slice(0, target.given)), words: target.words.slice(0, target.given) };
  return running(wordsOf(given.tokens, given.words), ({ places }, text) =>
    wordButton(app, "target", places, places, text, { class: target.special[places[0]] ? "special" : "" }),
  );
}

function facts(app, found) {
  const { trace, verb, pieces, at } = app.session,
    parts = pieces.length > 1 ? [`part ${at + 1} of ${pieces.length}`] : [];
  parts.push(`log P ${fixed(found.log_probability)}`);
  if (verb === "translate") parts.push(`score ${fixed(found.score)}`);
  parts.push(`${found.tokens.length} tokens`, found.ended ? "ended by itself" : "stopped: it was long enough");
  if (trace?.model.written_in) parts.push(`written in ${trace.model.written_in}`);
  const link = (text, changes) => button(text, () => app.set(changes), { class: "link" });
  const looks = trace?.looks; // what the words here are lit by is what the other view should show
  return el(
    "p",
    { class: "facts" },
    el("span", { text: parts.join(" · ") }),
    trace &&
      el(
        "span",
        {},
        link("how it was found", { view: "steps" }),
        " ",
        looks && link("all attention", { view: "attention", kind: looks.kind, layer: looks.layer + 1, head: 0 }),
      ),
  );
}

function another(app) {
  if (app.session.carried) return null;
  return el(
    "p",
    {},
    button("Another", () => app.ask({ seed: app.state.seed + 1 }), { key: "another", title: "The same with the next seed" }),
  );
}

function alternatives(app, found) {
  if (!found.alternatives?.length) return null;
  const rows = found.alternatives.map((other, place) => {
    const words = sureWords(other.tokens, other.log_probabilities, guessed(other.tokens), other.text);
    const text = el(
      "span",
      { class: "other", dir: "auto" },
      running(words, (word, own) => el("span", { class: "sure", text: own, ...sure(word.probability) })),
    );
    return [String(place + 2), text, fixed(other.score), fixed(other.log_probability)];
  });
  return el(
    "section",
    { class: "card" },
    el("h2", { text: "Alternatives" }),
    table("Alternatives, best first", ["", "text", "score", "log P"], rows, { class: "texts" }),
  );
}

function tokenTable(app, found) {
  const { trace } = app.session,
    given = trace?.given ?? 1;
  const make = () => {
    const tokens =
      found.ended && found.log_probabilities.length > found.tokens.length
        ? [...found.tokens, trace?.document.target?.next.at(-1) ?? "<end>"]
        : found.tokens;
    const rows = names(tokens).map((name, place) => [
      name,
      fixed(Math.exp(found.log_probabilities[place])),
      fixed(found.log_probabilities[place]),
      trace ? told(trace, `target:${place + given - 1}`).replace(/^looked at /, "") : "",
    ]);
    return [
      table("Every token", ["token", "probability", "log P", "looked at"], rows),
      app.session.verb === "translate" &&
        el("p", { class: "facts" }, "score = ", formula("log P / lengthᵅ"), "log P is the sum over all tokens"),
    ];
  };
  return el(
    "section",
    { class: "card" },
    el("h2", { text: "Token by token" }),
    fold(found.tokens.length > 16 ? "many-tokens" : "tokens", "Probabilities and looks of every token", make),
  );
}

function classify(app, found) {
  const rows = Object.entries(found.probabilities)
    .sort(([, one], [, other]) => other - one)
    .map(([name, value], place) => ({ name, value, chosen: place === 0 }));
  return (line) => [
    el(
      "div",
      { class: "card answer" },
      el(
        "p",
        { class: "output", "aria-label": "Answer" },
        el("strong", { text: found.label }),
        el("span", { class: "muted", text: ` ${fixed(found.probability)}` }),
      ),
      copying(() => found.label),
      app.session.trace && el("p", { class: "input", dir: "auto", "aria-label": "Text" }, sourceWords(app)),
      line,
    ),
    el("section", { class: "card" }, el("h2", { text: "Every label" }), bars("Probability of every label", "label", rows)),
  ];
}

/** The text with its best words in place, marked: each is the first after what stood before its gap. */
function filled(given, found) {
  const between = given.split(/\[MASK\]|<mask>/),
    parts = [];
  let at = 0;
  for (const [place, [best]] of found.choices.entries()) {
    const before = (between[place] ?? "").trim(),
      after = before ? found.text.indexOf(before, at) + before.length : at;
    const from = found.text.indexOf(best.word, after);
    if (from < 0) return found.text;
    parts.push(found.text.slice(at, from), el("span", { class: "sure", text: best.word, ...sure(best.probability) }));
    at = from + best.word.length;
  }
  return [...parts, found.text.slice(at)];
}

function fill(app, found) {
  const places = found.choices.map((choices, place) =>
    el(
      "section",
      { class: "card" },
      el("h2", { text: found.choices.length > 1 ? `[MASK] ${place + 1}` : "For [MASK]" }),
      bars(
        `Words for [MASK] ${place + 1}`,
        "word",
        choices.map(({ word, probability }, rank) => ({ name: word, value: probability, chosen: rank === 0 })),
      ),
    ),
  );
  return (line) => [
    el(
      "div",
      { class: "card answer" },
      el("p", { class: "output", dir: "auto", "aria-label": "Answer" }, filled(app.state.text, found)),
      copying(() => found.text),
      app.session.trace && el("p", { class: "input", dir: "auto", "aria-label": "Text" }, sourceWords(app)),
      line,
    ),
    el("div", { class: "columns" }, places),
  ];
}

function embed(app, found) {
  const vector = found && read(found.vector)?.values;
  return (line) => [
    el(
      "div",
      { class: "card answer" },
      vector &&
        heat({
          values: vector,
          columns: vector.length,
          limit: span(vector),
          label: "vector",
          note: `(${vector.length})`,
          cell: (_, at) => `number ${at}`,
        }),
      app.session.trace && el("p", { class: "input", dir: "auto", "aria-label": "Text" }, sourceWords(app)),
      line,
    ),
  ];
}
