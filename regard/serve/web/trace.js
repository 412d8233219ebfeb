// A trace as the views read it: tokens with names to show, weights by kind, layer and head, vectors by stack.

import { Tensor, read } from "./arrays.js";
import { fixed } from "./dom.js";

const SAME = 5e-4; // of a probability: what can't be seen in three places
export const KINDS = { encoder: "encoder", decoder: "decoder", cross: "cross" };
const SEEN = { "\n": "⏎", "\t": "⇥", " ": "␣" };

/** A token as it is shown: spaces that stand alone are seen; · goes on with a word. */
export function shown(token, goesOn = false) {
  const text = token.trim();
  if (!text) return [...token].map((letter) => SEEN[letter] ?? letter).join("") || "∅";
  return (goesOn ? "·" : "") + text;
}

const LETTER = /\\x([89a-f][0-9a-f])|[^]/gu; // bytes of characters that no token has as a whole are written as \\xf0
const RAISED = [..."⁰¹²³⁴"];
export const MOST_PARTS = 4; // of a character
const UNSEEN = /^[\p{C}\p{M}\p{Z}]/u,
  MARK = /^\p{M}/u;

/** Tokens letter by letter: {text, places}; bytes that make a character together are one, whatever tokens they are in, and `made`. */
function letters(tokens) {
  const all = tokens.flatMap((token, place) =>
    [...token.matchAll(LETTER)].map(([text, digits]) => ({ text, place, byte: digits ? parseInt(digits, 16) : 0 })),
  );
  const found = [];
  let at = 0;
  while (at < all.length) {
    const { byte, text, place } = all[at],
      own = byte ? all.slice(at, at + (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2)) : [],
      character = byte && whole(own.map((each) => each.byte));
    if (character) found.push({ text: character, places: [...new Set(own.map((each) => each.place))], made: true });
    else found.push({ text, places: [place], made: false }); // what is no character of its own stays bytes
    at += character ? own.length : 1;
  }
  return found;
}

function whole(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
  } catch {
    return "";
  }
}

/** The same text in as many tokens, without bytes: a character stands in the first of its tokens. */
export function mended(tokens) {
  if (!tokens.some((token) => token.includes("\\x"))) return tokens;
  const texts = tokens.map(() => "");
  for (const { text, places } of letters(tokens)) texts[places[0]] += text;
  return texts;
}

/** Names of tokens; one that is part of a character bears the character, and which of its parts it is. */
export function names(tokens, words = null) {
  const texts = tokens.map(() => ""),
    begun = tokens.map(() => false); // with a part of a character
  for (const { text, places, made } of letters(tokens))
    places.forEach((place, part) => {
      if (!texts[place]) begun[place] = made;
      const unseen = made && UNSEEN.test(text) && !(MARK.test(text) && texts[place].trim());
      texts[place] += unseen ? `U+${text.codePointAt(0).toString(16).toUpperCase()}` : text;
      if (places.length > 1) texts[place] += RAISED[part + 1];
    });
  return texts.map((text, place) =>
    shown(text, words !== null && !begun[place] && place > 0 && words[place] === words[place - 1]),
  );
}

/** Tokens joined to words: [{text, places}]. */
export function wordsOf(tokens, words) {
  const found = [];
  tokens.forEach((token, place) => {
    if (place && words[place] === words[place - 1]) {
      found.at(-1).text += token;
      found.at(-1).places.push(place);
    } else found.push({ text: token, places: [place] });
  });
  return found;
}

/** Where words begin, when only tokens are known. */
export function guessed(tokens) {
  let word = -1;
  return tokens.map((token, place) => (place === 0 || /^\s/.test(token) || /^[.,;:!?…]+$/.test(token) ? (word += 1) : word));
}

export class Trace {
  constructor(document) {
    this.document = document;
    this.model = document.model;
    // With dots before what goes on with a word, and without.
    this.labels = { source: [], target: [], next: [] };
    const { source, target } = document;
    this.plain = { source: names(source?.tokens ?? []), target: names(target?.tokens ?? []), next: names(target?.next ?? []) };
    if (source) this.labels.source = names(source.tokens, source.words);
    if (target) {
      this.labels.target = names(target.tokens, target.words);
      this.labels.next = names(target.next, target.next_words);
    }
  }

  get verb() {
    return this.document.verb;
  }
  get answer() {
    return this.document.answer;
  }
  get given() {
    return this.document.target?.given ?? 0;
  }
  get kinds() {
    return Object.keys(KINDS).filter((kind) => this.document.attention[kind]);
  }
  get stacks() {
    return Object.keys(this.model.layers);
  }

  /** Whose tokens a stack reads. */
  side(stack) {
    return stack === "encoder" ? "source" : "target";
  }

  /** The names of rows and columns. Cross-attention's rows bear the word that was being written. */
  axes(kind) {
    const { query, key } = this.document.attention[kind];
    return { query, key, rows: kind === "cross" ? this.labels.next : this.labels[query], columns: this.labels[key] };
  }

  /** How many layers and heads there are to be shown. */
  extent(kind) {
    const own = this.document.attention[kind];
    return { layers: own.layers, heads: own.heads };
  }

  /** Weights (query, key) of one head, or the mean of all (head −1); null where they are missing. */
  weights(kind, layer, head) {
    const own = this.document.attention[kind],
      all = read(own?.weights);
    const at = own ? own.layers.indexOf(layer) : -1;
    if (!all || at < 0) return null;
    if (head >= 0) return own.heads.includes(head) ? all.at(at, own.heads.indexOf(head)) : null;
    return mean(all.at(at));
  }

  /** Who may see whom (query, key), or null where everyone may. */
  mask(kind) {
    return read(this.document.attention[kind]?.mask);
  }

  /**
   * How the model looked: while it wrote, at the source; without one, in the last layer, at its own text.
   * `from` looks at `side`; row 0 is position `first`; head −1 is the average of all.
   */
  get looks() {
    const kind = this.kinds.at(-1);
    if (!kind) return null;
    const found = read(this.document.alignment),
      layer = this.extent(kind).layers.at(-1),
      { query, key } = this.axes(kind);
    if (found) return { weights: found, from: "target", side: "source", first: this.given - 1, kind, layer, head: -1 };
    const weights = this.weights(kind, layer, -1);
    return weights && { weights, from: query, side: key, first: 0, kind, layer, head: -1 };
  }

  /** What some looks are, in words. */
  lightName({ kind, layer, head }) {
    const { heads, layers } = this.extent(kind),
      parts = [
        kind === "cross" ? "cross-attention" : this.stacks.length > 1 ? `self-attention of the ${kind}` : "self-attention",
      ];
    if (layers.length > 1) parts.push(`layer ${layer + 1}`);
    if (heads.length > 1) parts.push(head < 0 ? "average of all heads" : `head ${head + 1}`);
    return parts.join(", ");
  }

  /** How far the probabilities of this pass are from those that the words were written with: what another precision makes of them. */
  get apart() {
    const logs = this.answer?.log_probabilities ?? [],
      chosen = this.document.output?.chosen ?? [];
    const pairs = logs.map((log, place) => [Math.exp(log), chosen[place + this.given - 1]?.probability]);
    return pairs.reduce((most, [one, other]) => Math.max(most, other === undefined ? 0 : Math.abs(one - other)), 0);
  }

  /** Which pass the numbers are of, and in what precision. */
  get pass() {
    const { written_in: written, traced_in: traced } = this.model;
    if (!this.document.target) return traced ? `All numbers are of the pass that gave the answer, in ${traced}.` : "";
    if (this.apart < SAME)
      return traced && traced === written ? `The answer was written in ${written}, and so is what is shown here.` : "";
    return `The answer was written ${written ? `in ${written}` : "in one pass"}; what is shown here is a second pass over it${traced ? `, in ${traced}` : ""}, in which the probabilities of its words differ by up to ${fixed(this.apart)}.`;
  }

  /** What was probable at one of the places that were predicted: [{name, value, chosen, title}], the most probable first. */
  candidates(at) {
    const { output, target } = this.document,
      place = output.places[at],
      chosen = output.chosen?.[at]?.id;
    const before = target?.tokens.slice(Math.max(0, place - MOST_PARTS + 2), place + 1) ?? []; // where parts of a character may stand
    return output.tokens[at].map((token, rank) => ({
      name: output.ids[at][rank] === chosen ? this.plain.next[place] : names([...before, token]).at(-1),
      value: output.probabilities[at][rank],
      chosen: output.ids[at][rank] === chosen,
      title: `logit ${fixed(output.logits[at][rank])}`,
    }));
  }

  /** Why a part is not here. */
  missing(part) {
    return this.document.left_out?.find((own) => own.part === part)?.why ?? null;
  }
}

function mean(tables) {
  const [heads, rows, columns] = tables.shape,
    size = rows * columns;
  const result = new Float32Array(size);
  for (let head = 0; head < heads; head += 1)
    for (let place = 0; place < size; place += 1) result[place] += tables.values[head * size + place] / heads;
  return new Tensor([rows, columns], result);
}
