// What was asked, and what has come of it so far: models, answers, traces, the parts of a trace that are asked for later.

import * as api from "./api.js";
import { ASKED } from "./state.js";
import { Trace } from "./trace.js";

const FIRST = ["search", "output", "weights"]; // what most views need
const DEEP = ["scores", "qkv", "vectors", "inner"];
const ALL_AT_ONCE = 1.5e6; // numbers: a smaller model's layers come together

/** A part of the text that is answered on its own, and what is known of it. */
function piece(given, answer, trace = null) {
  return { given, answer, trace, working: false, problem: null, later: new Map() };
}

export class Session {
  /** `changed` is called whenever there is something new to show. */
  constructor(changed) {
    this.changed = changed;
    this.models = null;
    this.problem = null; // of models, or of the answer
    this.forget();
    const carried = api.carried();
    this.carried = carried !== null;
    if (carried) this.carry(carried);
  }

  forget() {
    this.asked = "";
    this.verb = null;
    this.warnings = [];
    this.pieces = []; // a line, or a sentence of a long one, each
    this.around = [""]; // what stands before, between and after them
    this.at = 0; // which of them is looked into
    this.stop?.abort();
    this.looking?.abort();
    this.answering = false;
  }

  carry(document) {
    this.models = [document.model];
    this.pieces = [piece(document.text, document.answer, new Trace(document))];
    this.around = ["", ""];
    this.verb = document.verb;
  }

  get piece() {
    return this.pieces[this.at] ?? null;
  }
  get answer() {
    return this.piece?.answer ?? null;
  }
  get trace() {
    return this.piece?.trace ?? null;
  }
  get traceProblem() {
    return this.piece?.problem ?? null;
  }
  get working() {
    return this.answering || (this.piece?.working ?? false);
  }

  /** The whole answer, each part of it where the part of the text stood. */
  get text() {
    return this.around[0] + this.pieces.map((own, place) => own.answer.text + this.around[place + 1]).join("");
  }

  card(state) {
    return this.models?.find((model) => model.name === state.model) ?? null;
  }

  async loadModels() {
    this.problem = null;
    try {
      this.models = await api.models();
    } catch (problem) {
      this.problem = problem;
    }
  }

  /** Asks for what the state says, unless that was asked already. */
  async ask(state, again = false) {
    if (this.carried || !this.models) return;
    this.state = state;
    const wanted = JSON.stringify(ASKED.map((name) => state[name]));
    if (wanted === this.asked && !again) return this.turn();
    this.forget();
    this.problem = null;
    this.asked = wanted;
    const card = this.card(state);
    if (!card || !state.text.trim()) return;
    this.verb = api.verb(card, state.text);
    this.answering = true;
    const { signal } = (this.stop = new AbortController());
    this.changed();
    try {
      const found = await this.answers(state, signal);
      this.pieces = found.pieces.map(({ given, answer }) => piece(given, answer));
      [this.around, this.warnings] = [found.around, found.warnings];
    } catch (problem) {
      if (problem.name === "AbortError") return;
      this.problem = problem;
    }
    if (signal.aborted) return;
    this.answering = false;
    this.turn();
    this.changed();
  }

  answers(state, signal) {
    if (this.verb !== "embed") return api.answer(state, this.verb, signal);
    return { pieces: [{ given: state.text, answer: null }], around: ["", ""], warnings: [] }; // its trace has it
  }

  /** Looks into the part that the state says, unless that was done already. */
  turn() {
    if (this.answering || !this.pieces.length) return;
    this.at = Math.min(this.pieces.length, Math.max(1, this.state.part)) - 1;
    const { piece: own } = this;
    if (!own.trace && !own.working && !own.problem) this.look(own);
  }

  /** The trace, after the answer: where it can't be had, the answer stays. */
  async look(own) {
    this.looking?.abort(); // nobody waits for the part that was picked before
    const { signal } = (this.looking = new AbortController());
    own.working = true;
    try {
      own.trace = new Trace(await api.trace(this.state, own.given, this.verb, FIRST, null, signal));
      own.answer = own.trace.answer;
    } catch (problem) {
      if (problem.name !== "AbortError") own.problem = problem;
    }
    own.working = false;
    this.changed();
  }

  /** Forgets what could not be had, so that it is asked for again where it is needed. */
  forgive() {
    const own = this.piece;
    if (!own) return;
    own.problem = null;
    for (const [key, found] of own.later) if (found.problem) own.later.delete(key);
  }

  /** A trace with more parts, asked for where it is not here yet: {trace} or {working} or {problem}. */
  more(name, parts, layers) {
    const key = `${name} ${layers ?? ""}`,
      { later } = this.piece;
    if (!later.has(key)) this.fetch(this.piece, key, parts, layers);
    return later.get(key);
  }

  async fetch({ given, later }, key, parts, layers) {
    const { signal } = this.stop,
      own = { working: true };
    later.set(key, own);
    try {
      own.trace = new Trace(await api.trace(this.state, given, this.verb, parts, layers, signal));
    } catch (problem) {
      if (problem.name === "AbortError") return;
      own.problem = problem;
    }
    own.working = false;
    this.changed();
  }

  /** Everything of one layer (counted from 0), for looking inside. */
  inside(layer) {
    const { document, model } = this.trace;
    if (this.carried) return { trace: this.trace };
    const tokens = (document.source?.tokens.length ?? 0) + (document.target?.tokens.length ?? 0);
    const layers = Object.values(model.layers).reduce((one, other) => one + other, 0);
    const whole = model.kind === "rnn" || tokens * layers * model.width * 4 < ALL_AT_ONCE;
    return this.more("inside", DEEP, whole ? null : [layer]);
  }

  schemes() {
    if (this.carried) return { trace: this.trace };
    return this.more("schemes", ["schemes"], null);
  }
}
