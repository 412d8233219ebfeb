// What was asked, and what has come of it so far: models, an answer, a trace, the parts of it that are asked for later.

import * as api from "./api.js";
import { ASKED } from "./state.js";
import { Trace } from "./trace.js";

const FIRST = ["search", "output", "weights"]; // what most views need
const DEEP = ["scores", "qkv", "vectors", "inner"];
const ALL_AT_ONCE = 1.5e6; // numbers: a smaller model's layers come together

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
    this.verb = this.answer = this.trace = this.traceProblem = null;
    this.warnings = [];
    this.parts = new Map(); // later parts of the trace, by name
    this.stop?.abort();
    this.working = false;
  }

  carry(document) {
    this.models = [document.model];
    this.trace = new Trace(document);
    this.answer = document.answer;
    this.verb = document.verb;
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
    this.changed();
  }

  /** Asks for what the state says, unless that was asked already. */
  async ask(state, again = false) {
    if (this.carried || !this.models) return;
    const wanted = JSON.stringify(ASKED.map((name) => state[name]));
    if (wanted === this.asked && !again) return;
    this.forget();
    this.problem = null;
    this.asked = wanted;
    const card = this.card(state);
    if (!card || !state.text.trim()) return;
    this.verb = api.verb(card, state.text);
    this.working = true;
    const stop = (this.stop = new AbortController());
    this.changed();
    try {
      const found = this.verb === "embed" ? null : await api.answer(state, this.verb, stop.signal);
      if (found) [this.answer, this.warnings] = [found.answer, found.warnings ?? []];
      this.changed();
      await this.follow(state, stop.signal);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      this.problem = problem;
    }
    if (stop.signal.aborted) return;
    this.working = false;
    this.changed();
  }

  /** The trace, after the answer: where it can't be had, the answer stays. */
  async follow(state, signal) {
    try {
      this.trace = new Trace(await api.trace(state, this.verb, FIRST, null, signal));
      this.answer = this.trace.answer;
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      this.traceProblem = problem;
    }
  }

  /** A trace with more parts, asked for where it is not here yet: {trace} or {working} or {problem}. */
  more(state, name, parts, layers) {
    const key = `${name} ${layers ?? ""}`;
    if (!this.parts.has(key)) this.fetch(state, key, parts, layers);
    return this.parts.get(key);
  }

  async fetch(state, key, parts, layers) {
    const { signal } = this.stop,
      own = { working: true };
    this.parts.set(key, own);
    try {
      own.trace = new Trace(await api.trace(state, this.verb, parts, layers, signal));
    } catch (problem) {
      if (problem.name === "AbortError") return;
      own.problem = problem;
    }
    own.working = false;
    this.changed();
  }

  /** Everything of one layer (counted from 0), for looking inside. */
  inside(state, layer) {
    const { document, model } = this.trace;
    if (this.carried) return { trace: this.trace };
    const tokens = (document.source?.tokens.length ?? 0) + (document.target?.tokens.length ?? 0);
    const layers = Object.values(model.layers).reduce((one, other) => one + other, 0);
    const whole = model.kind === "rnn" || tokens * layers * model.width * 4 < ALL_AT_ONCE;
    return this.more(state, "inside", DEEP, whole ? null : [layer]);
  }

  schemes(state) {
    if (this.carried) return { trace: this.trace };
    return this.more(state, "schemes", ["schemes"], null);
  }
}
