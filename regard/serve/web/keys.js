// What keys do, everywhere in the page, and the list of them.

import { button, el } from "./dom.js";
import { VIEWS } from "./state.js";

const KEYS = [
  ["1 … 6", "the views: Answer, Attention, Steps, Inside, Positions, Runs"],
  ["/", "to the sentence"],
  ["← →", "the word before, the next; in Steps the position"],
  ["Shift + ← →", "the head before, the next; before the first: the average of all"],
  ["Shift + ↑ ↓", "the layer before, the next"],
  ["t", "in Attention: table or lines"],
  ["Space", "in Steps: play or stop"],
  ["Tab", "through everything; within a table, grid or heat map the arrows move"],
  ["Enter", "picks what has the focus"],
  ["?", "this list"],
];

export function help() {
  const close = () => dialog.close();
  const list = KEYS.flatMap(([keys, what]) => [
    el(
      "dt",
      {},
      keys.split(" + ").flatMap((key, place) => [place ? " + " : null, el("kbd", { text: key })]),
    ),
    el("dd", { text: what }),
  ]);
  const dialog = el(
    "dialog",
    { "aria-label": "Keys" },
    el("h2", { text: "Keys" }),
    el("dl", {}, list),
    button("Close", close, { class: "go" }),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && close());
  document.body.append(dialog);
  dialog.showModal();
}

const OWN = "input, textarea, select, canvas, dialog, [role=grid], .chart"; // where arrows and letters have another meaning

export function listenToKeys(app) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    const typing = event.target.closest("input:not([type=radio], [type=checkbox]), textarea, select, dialog");
    if (typing || (event.key.startsWith("Arrow") && !event.shiftKey && event.target.closest(OWN))) return;
    const action = meaning(app, event);
    if (!action) return;
    event.preventDefault();
    action();
  });
}

function meaning(app, event) {
  const { key, shiftKey } = event,
    view = Object.keys(VIEWS)[Number(key) - 1];
  if (view && !(view === "runs" && app.session.carried)) return () => app.set({ view });
  if (key === "?") return () => help();
  if (key === "/") return () => document.querySelector("textarea").focus();
  if (key === "t" && app.state.view === "attention")
    return () => app.set({ shape: app.state.shape === "table" ? "lines" : "table" });
  if (key === " " && app.state.view === "steps" && !event.target.closest("button, summary, a, label")) return () => app.play();
  const [across, up] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key] ?? [0, 0];
  if (!app.session.trace || (!across && !up) || (up && !shiftKey)) return null;
  if (!shiftKey) return () => app.move(across);
  return across ? () => app.moveHead(across) : () => app.moveLayer(up);
}
