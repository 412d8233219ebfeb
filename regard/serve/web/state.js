// What is asked and what is picked. All of it is in the address, so that a view can be shared and the way back works.

export const VIEWS = {
  answer: "Answer",
  attention: "Attention",
  steps: "Steps",
  inside: "Inside",
  positions: "Positions",
  runs: "Runs",
};
const FIELDS = {
  view: "answer",
  model: "",
  text: "",
  to: "", // what is asked of whom
  beam: 0,
  penalty: "",
  temperature: "",
  length: 0,
  seed: 0, // how words are chosen; 0 or nothing: as the model would
  part: 1, // which part of a longer text is looked into
  source: -1,
  target: -1,
  key: -1, // the token that is picked in each sentence, and in self-attention the one that is looked at
  kind: "",
  layer: 1,
  head: 0, // of attention; head 0: the average of all
  shape: "table",
  mask: 1,
  node: -1, // how a head is shown, and what is picked in the tree
  stage: "", // the one that a link led to
  scheme: "",
  run: "",
};
const LEAST = { part: 1, layer: 1, source: -1, target: -1, key: -1, node: -1 }; // of the others 0
export const ASKED = ["model", "text", "to", "beam", "penalty", "temperature", "length", "seed"];
const PUSHED = new Set(["view", "part", "stage", ...ASKED]); // the way back goes from one of these to the other
const PICKED = { source: -1, target: -1, key: -1, node: -1 };

/** What an address says; what it does not say, or what can't be, is as ever. */
export function parsed(hash) {
  const state = { ...FIELDS };
  const found = /^#\/([a-z]*)(?:\?(.*))?$/s.exec(hash);
  if (!found) return state;
  if (Object.hasOwn(VIEWS, found[1])) state.view = found[1];
  for (const [name, value] of new URLSearchParams(found[2] ?? "")) {
    if (!Object.hasOwn(FIELDS, name) || name === "view") continue;
    if (typeof FIELDS[name] !== "number") state[name] = value;
    else if (/^-?\d{1,9}$/.test(value)) state[name] = Math.max(LEAST[name] ?? 0, Number(value));
  }
  return state;
}

/** The address of a state: only what is not as ever. */
export function address(state) {
  const said = new URLSearchParams();
  for (const [name, usual] of Object.entries(FIELDS)) if (name !== "view" && state[name] !== usual) said.set(name, state[name]);
  const query = said.toString();
  return `#/${state.view}${query ? `?${query}` : ""}`;
}

/** Holds the state, and tells when it changed. Each place on the way back knows how far it was scrolled. */
export class State {
  constructor() {
    this.values = parsed(location.hash);
    this.listeners = [];
    this.aim(history.state?.scroll ?? 0, this.values.stage);
    history.scrollRestoration = "manual"; // the browser would do it before there is anything to scroll
    addEventListener("popstate", (event) => {
      this.aim(event.state?.scroll ?? 0, parsed(location.hash).stage);
      this.follow();
    });
    addEventListener("hashchange", () => this.follow());
    for (const type of ["click", "keydown", "scrollend"]) addEventListener(type, () => this.mark(), { capture: true });
  }

  /** Where to go once the view is drawn: to a stage, else as far down as this place was scrolled. */
  aim(scroll, stage) {
    this.goal = scroll ? "" : stage;
    this.scroll = this.goal ? null : scroll;
  }

  /** Notes how far this place is scrolled, before something may lead away from it. */
  mark() {
    const scroll = Math.round(scrollY);
    if ((history.state?.scroll ?? 0) !== scroll) history.replaceState({ scroll }, "");
  }

  follow() {
    if (location.hash && !location.hash.startsWith("#/")) return;
    if (address(this.values) === (location.hash || address(parsed("")))) return;
    this.values = parsed(location.hash);
    this.tell();
  }

  /** Changes some of it. Another text has other words: what was picked in the last one is let go. */
  set(changes) {
    const next = { stage: "", ...changes },
      changed = Object.keys(next).filter((name) => next[name] !== this.values[name]);
    if (!changed.length) return;
    const asks = changed.some((name) => ASKED.includes(name)),
      again = asks || changed.includes("part") ? PICKED : {},
      whole = asks ? { part: 1 } : {};
    const before = this.values;
    this.values = { ...before, ...whole, ...again, ...next };
    const way = changed.some((name) => PUSHED.has(name) && !(name === "stage" && !next.stage)) ? "pushState" : "replaceState";
    if (next.stage || before.view !== this.values.view) this.aim(0, next.stage);
    history[way](way === "pushState" ? null : history.state, "", address(this.values));
    this.tell();
  }

  /** Fills in what was left to the page, without a place on the way back. */
  settle(changes) {
    if (Object.entries(changes).every(([name, value]) => this.values[name] === value)) return;
    this.values = { ...this.values, ...changes };
    history.replaceState(history.state, "", address(this.values));
  }

  tell() {
    for (const listener of this.listeners) listener(this.values);
  }
}
