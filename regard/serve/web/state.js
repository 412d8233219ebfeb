// What is asked and what is picked. All of it is in the address, so that a view can be shared and the way back works.

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
  source: -1,
  target: -1,
  key: -1, // the token that is picked in each sentence, and in self-attention the one that is looked at
  kind: "",
  layer: 1,
  head: 0, // of attention; head 0: the average of all
  shape: "table",
  mask: 1,
  node: -1, // how a head is shown, and what is picked in the tree
  scheme: "",
  run: "",
};
export const ASKED = ["model", "text", "to", "beam", "penalty", "temperature", "length", "seed"];
const PUSHED = new Set(["view", ...ASKED]); // the way back goes from one of these to the other
const PICKED = { source: -1, target: -1, key: -1, node: -1 };

/** What an address says; what it does not say is as ever. */
export function parsed(hash) {
  const state = { ...FIELDS };
  const found = /^#\/([a-z]*)(?:\?(.*))?$/s.exec(hash);
  if (!found) return state;
  if (found[1]) state.view = found[1];
  for (const [name, value] of new URLSearchParams(found[2] ?? "")) {
    if (!(name in FIELDS) || name === "view") continue;
    if (typeof FIELDS[name] !== "number") state[name] = value;
    else if (/^-?\d{1,9}$/.test(value)) state[name] = Number(value);
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

/** Holds the state, and tells when it changed. */
export class State {
  constructor() {
    this.values = parsed(location.hash);
    this.listeners = [];
    addEventListener("popstate", () => this.follow());
    addEventListener("hashchange", () => this.follow());
  }

  follow() {
    if (location.hash && !location.hash.startsWith("#/")) return;
    if (address(this.values) === (location.hash || address(parsed("")))) return;
    this.values = parsed(location.hash);
    this.tell();
  }

  /** Changes some of it. Another text has other words: what was picked in the last one is let go. */
  set(changes) {
    const changed = Object.keys(changes).filter((name) => changes[name] !== this.values[name]);
    if (!changed.length) return;
    const again = changed.some((name) => ASKED.includes(name)) ? PICKED : {};
    this.values = { ...this.values, ...again, ...changes };
    const way = changed.some((name) => PUSHED.has(name)) ? "pushState" : "replaceState";
    history[way](null, "", address(this.values));
    this.tell();
  }

  /** Fills in what was left to the page, without a place on the way back. */
  settle(changes) {
    this.values = { ...this.values, ...changes };
    history.replaceState(null, "", address(this.values));
  }

  tell() {
    for (const listener of this.listeners) listener(this.values);
  }
}
