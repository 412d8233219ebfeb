// One stage on a word's way: what happens, its formula, the shape, strips of the numbers, and the numbers themselves.

import { el, fixed, fold, formula, short, table } from "./dom.js";
import { heat, span } from "./draw.js";

/**
 * `strips`: [{label, values, note, lines}] of one word; they share a scale, so that they can be compared, unless they are `apart`.
 * `lead` stands before them, `body` after.
 */
export function stage({
  name,
  title,
  formula: text,
  shape,
  says,
  lead = [],
  strips = [],
  body = [],
  unit = "number",
  apart = false,
}) {
  const shared = span(...strips.map((own) => own.values));
  const figures = strips.map(({ label, values, note, lines, cell }) => {
    const limit = apart ? span(values) : shared,
      reach = `colours to ±${short(limit)}`;
    return heat({
      values,
      columns: values.length,
      limit,
      label,
      note: `${note ?? `(${values.length})`}, ${reach}`,
      lines,
      cell: cell ?? ((_, at) => `${unit} ${at}`),
    });
  });
  const numbers = strips.length > 0 && fold(`numbers-${name}`, "Numbers", () => listed(title, strips, unit));
  return el(
    "section",
    { class: "card stage", id: `stage-${name}`, "aria-label": title },
    el("header", {}, el("h3", { text: title }), text && formula(text), shape && el("span", { class: "shape", text: shape })),
    el("p", { class: "says", text: says }),
    lead,
    figures,
    body,
    numbers,
  );
}

function listed(title, strips, unit) {
  const most = Math.max(...strips.map((own) => own.values.length));
  const rows = Array.from({ length: most }, (_, at) => [
    String(at),
    ...strips.map(({ values }) => (at < values.length ? fixed(values[at], 4) : "")),
  ]);
  const made = table(`${title}: numbers`, [unit, ...strips.map((own) => own.label)], rows, { class: "numbers" });
  made.classList.add("tall");
  return made;
}

/** A row of numbers under the words that they belong to; `paint` gives a cell's style, `pick` is called with its place. */
export function rowOf(caption, words, lines, picked, pick) {
  const heads = words.map((word) => el("th", { scope: "col", dir: "auto", text: word }));
  const rows = lines.map(({ name, values, show = fixed, paint, hidden }) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", text: name }),
      words.map((word, at) => {
        const classes = [hidden?.(at) && "hidden", at === picked && "picked"].filter(Boolean).join(" ");
        return el("td", {
          class: classes || null,
          text: show(values[at]),
          style: paint && !hidden?.(at) ? paint(values[at]) : {},
          title: word,
          on: pick ? { click: () => pick(at) } : {},
        });
      }),
    ),
  );
  return el(
    "div",
    { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    el(
      "table",
      { class: "row-of" },
      el("caption", { class: "unseen", text: caption }),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "unseen", text: "of" })), heads)),
      el("tbody", {}, rows),
    ),
  );
}

/** A small heat map with a word for each row. */
export function named(label, words, tensor, limit, now) {
  const high = Math.max(6, Math.min(18, 240 / words.length)),
    list = words.length <= 40;
  const map = heat({
    values: tensor.values,
    rows: words.length,
    columns: tensor.shape[1],
    limit,
    label,
    note: `(${tensor.shape.join(", ")})`,
    high,
    marked: now >= 0 ? now : null,
    cell: (row, at) => `${words[row]}, number ${at}`,
  });
  const names = el(
    "ol",
    { "aria-hidden": "true", style: { "--row": `${high}px` } },
    words.map((word, at) => el("li", { class: at === now ? "now" : null, text: high >= 11 ? word : "" })),
  );
  return el("div", { class: "named" }, list ? names : el("span"), map);
}

export function nothing(title, why) {
  return el("section", { class: "card stage" }, el("h3", { text: title }), el("p", { class: "says", text: why }));
}

/** Probabilities as bars with their numbers. */
export function bars(caption, heading, rows) {
  const lines = rows.map(({ name, value, chosen, title }) => [
    el("span", { class: chosen ? "name chosen" : "name", text: name, title, dir: "auto" }),
    el("span", { class: "meter", "aria-hidden": "true", style: { "--part": Math.max(0, Math.min(1, value)) } }),
    value < 0.0005 && value > 0 ? short(value) : fixed(value),
  ]);
  return table(caption, [heading, "", "probability"], lines, { class: "bars" });
}
