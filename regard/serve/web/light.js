// Pointing at a word lights what it looked at. Elements say which tokens they look as and are seen as: data-looks, data-seen = "source:3".
// Whose looks are shown comes with each call: {weights, from, side, first}, see Trace.looks.

import { shade, tinted } from "./colour.js";
import { fixed } from "./dom.js";

function tokens(said) {
  const [side, places] = said.split(":");
  return { side, places: places.split(",").map(Number) };
}

/** The attributes of an element that stands for some tokens; a language model's words are written one position before they are read. */
export function stands(side, looks, seen = looks) {
  return { "data-looks": `${side}:${looks.join(",")}`, "data-seen": `${side}:${seen.join(",")}` };
}

/** What some tokens looked at, or who looked at them: {side, values}. */
export function looked(looks, { side, places }) {
  if (!looks) return null;
  const [rows, columns] = looks.weights.shape,
    at = (row) => looks.weights.row(row);
  if (side === looks.from) {
    const own = places.map((place) => place - looks.first).filter((row) => row >= 0 && row < rows);
    const values = Array.from({ length: columns }, (_, key) => own.reduce((total, row) => total + at(row)[key], 0) / own.length);
    return own.length ? { side: looks.side, values, writes: true } : null;
  }
  if (side !== looks.side) return null;
  const values = Array(looks.first).fill(0);
  for (let row = 0; row < rows; row += 1) values.push(places.reduce((total, key) => total + at(row)[key], 0));
  return { side: looks.from, values, writes: false };
}

/** Lights up, all over the page, what the tokens of an element looked at; `null` puts it out. */
export function light(looks, said) {
  for (const element of document.querySelectorAll(".lit")) {
    element.classList.remove("lit");
    for (const name of ["background-color", "color"]) element.style.removeProperty(name);
  }
  const found = said && looked(looks, tokens(said));
  if (!found) return;
  for (const element of document.querySelectorAll("[data-seen]")) {
    const own = tokens(element.dataset.seen);
    if (own.side !== found.side) continue;
    const value = own.places.reduce((total, place) => total + (found.values[place] ?? 0), 0);
    if (value < 0.02) continue;
    element.classList.add("lit");
    for (const [name, colour] of Object.entries(tinted(shade(value)))) element.style.setProperty(name, colour);
  }
}

/** The same in words, of how the model looked while it wrote: the few that matter most. */
export function told(trace, said) {
  const own = said && tokens(said),
    found = own && looked(trace?.looks, own);
  if (!found) return "";
  const names = found.side === "target" && trace.document.source ? trace.labels.next : trace.labels[found.side];
  const best = found.values
    .map((value, place) => [value, names[place]])
    .filter(([value, name]) => value >= 0.02 && name !== undefined);
  best.sort(([one], [other]) => other - one);
  const list = best
    .slice(0, 4)
    .map(([value, name]) => `${name} ${fixed(value, 2)}`)
    .join(", ");
  return `${found.writes ? "looked at" : "was looked at by"} ${list || "nothing much"}`;
}
