// Elements from plain descriptions. Text goes in as text: nothing that a model or a person wrote ever becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element: `class`, `text`, `key` (by which focus is found again), `on` (listeners), `style` (properties by name);
 * the rest are attributes.
 */
export function el(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same for drawings. */
export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, { class: names, text, key, on, style, ...attributes }, children) {
  if (names) element.setAttribute("class", names);
  if (key) element.dataset.key = key;
  for (const [name, value] of Object.entries(style ?? {})) element.style.setProperty(name, value);
  for (const [name, listener] of Object.entries(on ?? {})) element.addEventListener(name, listener);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  if (text !== undefined) element.textContent = text;
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Says something to those who listen to the page. */
export function say(message) {
  document.getElementById("said").textContent = message;
}

/** A number to some places, with a real minus. */
export function fixed(value, places = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
  const text = Math.abs(value).toFixed(places);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}

/** A number of any size, short. */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return fixed(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace("-", "−").replace("e−", "e-");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : fixed(value, size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

export function count(value) {
  return value.toLocaleString("en");
}

/** One of several, as radio buttons: arrows work by themselves. */
export function choice(name, label, options, value, pick) {
  const buttons = options.map(([own, text, title]) =>
    el(
      "label",
      { title },
      el("input", {
        type: "radio",
        name,
        value: own,
        checked: own === value,
        key: `${name}-${own}`,
        on: { change: () => pick(own) },
      }),
      el("span", { text }),
    ),
  );
  return el("fieldset", { class: "choice" }, el("legend", { text: label }), el("div", { class: "options" }, buttons));
}

/** On or off. */
export function toggle(name, label, value, pick, title) {
  const box = el("input", { type: "checkbox", checked: value, key: name, on: { change: (event) => pick(event.target.checked) } });
  return el("label", { class: "toggle", title }, box, el("span", { text: label }));
}

export function button(text, press, properties = {}) {
  return el("button", { type: "button", text, on: { click: press }, ...properties });
}

/** Text that can be pressed, and selected and copied like any other: what a button's label never can. */
export function pressed(text, press, { on, ...properties } = {}) {
  const act = (event) => {
    if (event.detail > 1 || String(getSelection())) return; // somebody is selecting
    press();
  };
  const keydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    press();
  };
  return el("span", { role: "button", tabindex: "0", text, ...properties, on: { click: act, keydown, ...on } });
}

/** A button that puts a text into the clipboard, and says that it did. */
export function copy(label, text) {
  const made = button(label, async () => {
    const done = await copied(text());
    made.textContent = done ? "Copied" : "Select it, and copy by hand";
    say(made.textContent);
    setTimeout(() => (made.textContent = label), 1600);
  });
  made.dataset.key = "copy";
  return made;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedByHand(text); // a page that came without https, from another machine
  }
}

function copiedByHand(text) {
  const field = el("textarea", { class: "unseen", readonly: true }),
    before = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus();
  return done;
}

/** Something that unfolds; it stays as it was when the view is drawn again. */
const unfolded = new Set(["tokens"]);
export function fold(name, summary, make, properties = {}) {
  const details = el(
    "details",
    { ...properties, open: unfolded.has(name) },
    el("summary", { text: summary, key: `fold-${name}` }),
  );
  const fill = () => details.childElementCount === 1 && details.append(...[make()].flat().filter(Boolean));
  if (details.open) fill();
  details.addEventListener("toggle", () => {
    if (details.open) {
      unfolded.add(name);
      fill();
    } else unfolded.delete(name);
  });
  return details;
}

/** What a view shows, in one sentence, and why it is so. */
export function intro(name, sentence, why) {
  return el(
    "div",
    { class: "intro" },
    el("p", { text: sentence }),
    fold(`why-${name}`, "Why", () => why.map((text) => el("p", { text })), { class: "why" }),
  );
}

/** A line about what is shown, where there is something to say. */
export function aside(text) {
  return text ? el("p", { class: "aside", text }) : null;
}

/** That something is being done; there at once. */
export function working(text) {
  return el(
    "div",
    { class: "working", role: "status" },
    el("span", { class: "bar", "aria-hidden": "true" }),
    el("span", { text: `${text} …` }),
  );
}

/** Text that is shown as it is written in formulas. */
export function formula(text) {
  return el("code", { class: "formula", text });
}

/** A table: headings, rows of cells (texts or elements); the first cell of a row heads it. */
export function table(caption, headings, rows, properties = {}) {
  const heads = headings.map((text) => el("th", { scope: "col" }, text));
  const lines = rows.map((cells) =>
    el(
      "tr",
      {},
      cells.map((cell, place) => el(place ? "td" : "th", place ? {} : { scope: "row" }, cell)),
    ),
  );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      properties,
      el("caption", { class: "unseen", text: caption }),
      el("thead", {}, el("tr", {}, heads)),
      el("tbody", {}, lines),
    ),
  );
}
