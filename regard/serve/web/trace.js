// A trace as the views read it: tokens with names to show, weights by kind, layer and head, vectors by stack.

import { Tensor, read } from "./arrays.js";

export const KINDS = { encoder: "encoder", decoder: "decoder", cross: "cross" };
const SEEN = { "\n": "⏎", "\t": "⇥", " ": "␣" };

/** A token as it is shown: spaces that stand alone are seen; · goes on with a word. */
export function shown(token, goesOn = false) {
  const text = token.trim();
  if (!text) return [...token].map((letter) => SEEN[letter] ?? letter).join("") || "∅";
  return (goesOn ? "·" : "") + text;
}

function names(tokens, words) {
  return tokens.map((token, place) => shown(token, place > 0 && words[place] === words[place - 1]));
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
    this.labels = { source: [], target: [], next: [] };
    const { source, target } = document;
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

  /** How the model looked: while it wrote, at the source; without one, in the last layer, at its own text. Row 0 is position `first`. */
  get looks() {
    const found = read(this.document.alignment);
    if (found) return { weights: found, side: "source", first: this.given - 1 };
    const kind = this.kinds.at(-1);
    if (!kind) return null;
    const weights = this.weights(kind, this.extent(kind).layers.at(-1), -1);
    return weights && { weights, side: this.axes(kind).key, first: 0 };
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
