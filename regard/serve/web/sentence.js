// The sentence: what is asked, and in every view the tokens of what was read and written, to be pointed at and picked.

import { button, el, fixed } from "./dom.js";
import { verb } from "./api.js";
import { light, stands } from "./light.js";
import { looksOf } from "./picks.js";

const DOES = { translate: "Translate", generate: "Go on", classify: "Classify", fill: "Fill in", embed: "Read" };
const HINTS = {
  translate: "A sentence to translate",
  generate: "How it begins",
  classify: "A text to classify",
  fill: "A text that says [MASK] where a word is missing",
  embed: "A text to read",
};

/** The name of a language, where the browser knows it. */
export function language(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code) ?? code;
  } catch {
    return code; // a tag that is no language
  }
}

/** The form; made once, so that nobody is disturbed while typing. */
export class Sentence {
  constructor(app) {
    this.app = app;
    this.text = el("textarea", {
      rows: 1,
      spellcheck: "false",
      dir: "auto",
      "aria-label": "Text",
      key: "text",
      maxlength: 10000,
    });
    this.to = el("select", { "aria-label": "To which language", key: "to" });
    this.go = el("button", { type: "submit", class: "go", key: "go" });
    this.wishes = el("div", { class: "wishes" });
    this.form = el("form", { class: "ask" }, this.text, this.to, this.go, this.wishes);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.text.addEventListener("input", () => this.grow());
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    this.to.addEventListener("change", () => this.send());
    addEventListener("resize", () => this.grow());
  }

  send() {
    const text = this.text.value;
    if (!text.trim()) return this.text.focus();
    if (!this.app.ask({ text, ...(this.to.hidden ? {} : { to: this.to.value }) })) this.app.again();
  }

  grow() {
    this.text.style.setProperty("height", "auto");
    this.text.style.setProperty("height", `${Math.min(this.text.scrollHeight + 2, 160)}px`);
  }

  update() {
    const { state, session } = this.app,
      card = session.card(state),
      carried = session.carried;
    const does = card ? (carried ? session.verb : verb(card, state.text)) : null;
    if (this.shownText !== state.text) {
      this.text.value = this.shownText = state.text;
    }
    this.text.readOnly = carried;
    this.text.title = carried ? "This file holds one sentence; regard serve reads any" : "";
    this.text.placeholder = HINTS[does] ?? "Text";
    const languages = card?.languages ?? [];
    this.to.hidden = !languages.length;
    this.to.disabled = carried;
    if (this.to.dataset.of !== `${card?.name} ${languages}`) {
      this.to.dataset.of = `${card?.name} ${languages}`;
      this.to.replaceChildren(...languages.map((code) => el("option", { value: code, text: `→ ${language(code)}` })));
    }
    this.to.value = state.to || languages[0];
    this.go.textContent = DOES[does] ?? "Ask";
    this.go.hidden = carried;
    this.choose(does, carried);
    if (this.grown !== `${state.text} ${this.said}`) this.grow(); // once everything beside it is there
    this.grown = `${state.text} ${this.said}`;
  }

  /** How words are chosen: a few wishes, by the names that the library has for them. */
  choose(does, carried) {
    const { state } = this.app,
      wishes = [];
    if (does === "translate") {
      wishes.push(this.wish("beam", "beam size", { min: 1, max: 8, step: 1, value: state.beam || 4 }, 4));
      wishes.push(
        this.wish(
          "penalty",
          "length penalty",
          { min: 0, max: 3, step: 0.1, value: state.penalty === "" ? 1 : state.penalty },
          "",
        ),
      );
    } else if (does === "generate") {
      wishes.push(
        this.wish(
          "temperature",
          "temperature",
          { min: 0, max: 2, step: 0.1, value: state.temperature === "" ? 0.8 : state.temperature },
          "",
        ),
      );
      wishes.push(this.wish("length", "longest", { min: 1, max: 200, step: 1, value: state.length || 40 }, 40));
      wishes.push(this.wish("seed", "seed", { min: 0, max: 99999, step: 1, value: state.seed }, 0));
    }
    const said = JSON.stringify([does, carried, state.beam, state.penalty, state.temperature, state.length, state.seed]);
    if (this.said === said) return;
    this.said = said;
    this.wishes.replaceChildren(...(carried ? [] : wishes));
    this.wishes.hidden = carried || !wishes.length;
  }

  wish(name, label, numbers) {
    const change = (event) => {
      if (!event.target.reportValidity() || event.target.value === "") return;
      const value = event.target.value;
      this.app.ask({ [name]: name === "penalty" || name === "temperature" ? value : Number(value) });
    };
    return el(
      "label",
      {},
      el("span", { text: label }),
      el("input", { type: "number", key: `wish-${name}`, ...numbers, on: { change } }),
    );
  }
}

/** The tokens that were read and written, as rows of buttons; before them, which part of a longer text they are of. */
export function strips(app) {
  const { trace, pieces } = app.session,
    rows = pieces.length > 1 ? [turning(app)] : [];
  if (!trace) return rows;
  const { source, target } = trace.document,
    looks = looksOf(app);
  if (source) rows.push(strip(app, "source", target ? "source" : "text", trace.labels.source, source));
  if (target) rows.push(targetStrip(app, looks));
  if (looks && rows.length) rows.push(el("p", { class: "strip-light", text: `light: ${trace.lightName(looks)}` }));
  return rows;
}

/** In cross-attention words look while they are written, in the decoder's own where they are read. */
function targetStrip(app, looks) {
  const { trace } = app.session,
    { target, source } = trace.document;
  const written = { special: target.next_special, words: target.next_words };
  if (source && !(looks?.kind === "decoder")) return strip(app, "target", "target", trace.labels.next, written);
  const made = strip(app, "target", source ? "target" : "text", trace.labels.target, target);
  const last = target.next_special.at(-1)
    ? null
    : el("span", {
        class: "token written last",
        text: trace.labels.next.at(-1),
        title: "written last, and read no more",
        dir: "auto",
      });
  if (last) made.lastChild.append(last);
  return made;
}

/** From one part of a longer text to the next. */
function turning(app) {
  const { pieces, at } = app.session,
    go = (to) => () => app.set({ part: to + 1 });
  return el(
    "div",
    { class: "strip-row", role: "group", "aria-label": "Parts of the text" },
    el("span", { class: "strip-name", text: "part" }),
    el(
      "div",
      { class: "tokens turning" },
      button("◀", go(at - 1), { class: "token", key: "part-before", disabled: at === 0, "aria-label": "The part before" }),
      el("span", { text: `${at + 1} of ${pieces.length}`, role: "status" }),
      button("▶", go(at + 1), {
        class: "token",
        key: "part-next",
        disabled: at === pieces.length - 1,
        "aria-label": "The next part",
      }),
    ),
  );
}

function strip(app, side, name, labels, { special, words }) {
  const { trace } = app.session,
    picked = app.state[side],
    chosen = trace.document.output?.chosen,
    reads = labels === trace.labels.target;
  const buttons = labels.map((text, place) => {
    const classes = ["token", special[place] && "special", place > 0 && words[place] === words[place - 1] && "joined"];
    if (side === "target" && reads && place >= trace.given) classes.push("written");
    const sure = side === "target" && !reads ? chosen?.[place]?.probability : undefined;
    const title = sure === undefined ? `position ${place}` : `position ${place}, probability ${fixed(sure)}`;
    return el("button", {
      type: "button",
      class: classes.filter(Boolean).join(" "),
      text,
      title,
      dir: "auto",
      "aria-pressed": String(place === picked),
      key: place === picked ? `strip-${side}` : `strip-${side}-${place}`,
      ...stands(side, [place]),
      tabindex: place === Math.max(0, picked) ? 0 : -1,
      on: {
        click: () => app.pick(side, place === picked ? -1 : place),
        keydown: (event) => along(event, app, side, labels.length),
      },
    });
  });
  return el(
    "div",
    { class: "strip-row", role: "group", "aria-label": `${name} tokens` },
    el("span", { class: "strip-name", text: name }),
    el("div", { class: "tokens" }, buttons),
  );
}

function along(event, app, side, end) {
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!move || event.shiftKey) return;
  event.preventDefault();
  event.stopPropagation();
  app.focus = `strip-${side}`;
  app.pick(side, Math.min(end - 1, Math.max(0, app.state[side] + move)));
}

/** Lights what the word under the pointer, or the picked one, looked at. */
export function listenToPointing(app) {
  const rest = () => light(looksOf(app), app.resting());
  const point = (event) => {
    const element = event.target.closest?.("[data-looks]");
    if (!element) return;
    light(looksOf(app), element.dataset.looks);
    app.pointed?.(element.dataset.looks);
  };
  const leave = (event) => {
    if (!event.target.closest?.("[data-looks]")) return;
    rest();
    app.pointed?.(app.resting());
  };
  for (const type of ["pointerover", "focusin"]) document.addEventListener(type, point);
  for (const type of ["pointerout", "focusout"]) document.addEventListener(type, leave);
  return rest;
}
