// The page: its state, what has come from the server, and the view that shows it.

import { answer } from "./answer.js";
import { attention } from "./attention.js";
import { button, el, say, working } from "./dom.js";
import { isDark, onPaper } from "./colour.js";
import { drawNow, whenSized } from "./draw.js";
import { dress, header } from "./header.js";
import { inside } from "./inside.js";
import { help, listenToKeys } from "./keys.js";
import { looksOf } from "./picks.js";
import { positions } from "./positions.js";
import { runs } from "./runs.js";
import { Sentence, listenToPointing, strips } from "./sentence.js";
import { Session } from "./session.js";
import { State, VIEWS } from "./state.js";
import { play, steps } from "./steps.js";
import { trouble } from "./trouble.js";

const DRAWN = { answer, attention, steps, inside, positions, runs };
const EXAMPLES = {
  translate: ["I love you very much.", "The cat sat on the mat because it was tired.", "Where is the nearest station?"],
  generate: ["Once upon a time", "The cat sat"],
  classify: ["A lovely, funny and warm film.", "I was bored from the first minute to the last."],
  fill: ["The cat sat on the [MASK].", "Paris is the [MASK] of France."],
  embed: ["Your cat is a lovely cat."],
};

class App {
  constructor() {
    this.store = new State();
    this.session = new Session(() => this.redraw());
    this.sentence = new Sentence(this);
    this.focus = null; // what should have the focus once the view is drawn again
    this.store.listeners.push(() => this.changed());
    this.rest = listenToPointing(this);
    listenToKeys(this);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    for (const [type, now] of Object.entries({ beforeprint: true, afterprint: false }))
      addEventListener(type, () => this.print(now));
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      document.getElementById("view").focus();
    });
  }

  get state() {
    return this.store.values;
  }

  async start() {
    const { session } = this;
    session.problem = null;
    if (!session.carried) session.asked = ""; // whatever could not be had before
    this.draw();
    if (!session.carried) await session.loadModels();
    this.changed();
  }

  /** A model and a language where the address names none. */
  settle() {
    const { session, state } = this,
      changes = {};
    if (session.carried)
      Object.assign(changes, {
        model: session.trace.model.name,
        text: session.trace.document.text,
        to: session.trace.document.to ?? "",
      });
    else if (!state.model) changes.model = session.models[0]?.name ?? "";
    const card = session.models.find((own) => own.name === (changes.model ?? state.model));
    if (card?.languages.length && !card.languages.includes(state.to) && !session.carried) changes.to = preferred(card.languages);
    this.store.settle(changes);
  }

  set(changes) {
    this.store.set(changes);
  }
  help() {
    help();
  }
  play() {
    play(this);
  }

  choose(model) {
    const languages = this.session.models.find((own) => own.name === model)?.languages ?? [];
    this.set({ model, to: languages.includes(this.state.to) ? this.state.to : preferred(languages) });
  }

  /** Asks something else; says whether it was anything else. */
  ask(changes) {
    const before = this.state;
    this.set(changes);
    return this.state !== before;
  }

  again() {
    this.session.ask(this.state, true);
  }

  /** Asks once more for what of this could not be had; so does coming back to a view. */
  retry() {
    this.session.forgive();
    this.session.ask(this.state);
    this.redraw();
  }

  changed() {
    if (this.session.models) this.settle();
    if (this.shown !== this.state.view) this.session.forgive();
    this.shown = this.state.view;
    this.session.ask(this.state);
    this.redraw();
  }

  /** Picks a token; in cross-attention a source token is one that is looked at. */
  pick(side, place) {
    this.set({ [side]: place, node: -1 });
  }

  move(by) {
    const {
        state,
        session: { trace },
      } = this,
      side = trace.document.target && (state.view === "steps" || state.kind !== "encoder") ? "target" : "source";
    const end = (side === "target" ? trace.labels.target : trace.labels.source).length;
    const first = state.view === "steps" ? trace.given - 1 : 0;
    this.pick(side, Math.min(end - 1, Math.max(first, (state[side] < 0 ? first - (by > 0 ? 1 : 0) : state[side]) + by)));
  }

  moveHead(by) {
    const heads = this.session.trace.model.heads ?? 1;
    this.set({ head: Math.min(heads, Math.max(0, this.state.head + by)) });
  }

  moveLayer(by) {
    const deepest = Math.max(...Object.values(this.session.trace.model.layers));
    this.set({ layer: Math.min(deepest, Math.max(1, this.state.layer + by)) });
  }

  /** The words whose looks are lit while nothing is pointed at. */
  resting() {
    const { target, source, view } = this.state,
      words = this.session.trace?.document.target?.next_words;
    if (target < 0 || looksOf(this)?.from === "source") return source >= 0 ? `source:${source}` : null;
    if (view !== "answer" || !words) return `target:${target}`;
    return `target:${[...words.keys()].filter((place) => words[place] === words[target]).join(",")}`; // all of the word
  }

  /** In the dark it is drawn anew for paper, and again when that is done. */
  print(now) {
    onPaper(false);
    if (!isDark()) return;
    onPaper(now);
    this.draw();
    drawNow();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    queueMicrotask(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const focus = this.focus ?? document.activeElement?.dataset?.key,
      scrolled = scrolls(),
      selected = selection();
    const { view } = this.state;
    this.pointed = null;
    document.getElementById("header").replaceChildren(...header(this));
    const place = document.getElementById("sentence");
    if (!this.sentence.form.isConnected) place.append(this.sentence.form, stripsPlace());
    this.sentence.update();
    place.hidden = view === "runs";
    place.lastChild.replaceChildren(...(view === "answer" || view === "runs" ? [] : strips(this)));
    const main = document.getElementById("view");
    main.className = `view-${view}`;
    main.setAttribute("aria-label", VIEWS[view]);
    main.setAttribute("aria-busy", String(this.session.working));
    main.replaceChildren(...content(this, DRAWN[view]).filter((own) => own !== null));
    document.title = [this.state.text.slice(0, 60), VIEWS[view], "regard"].filter(Boolean).join(" · ");
    this.focus = null;
    for (const { label, left, top } of scrolled)
      document.querySelector(`[aria-label="${CSS.escape(label)}"].scroll`)?.scrollTo(left, top);
    if (focus && document.activeElement?.dataset?.key !== focus)
      document.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
    if (document.activeElement === document.body) main.querySelector("[data-key=api-key]")?.focus();
    select(selected);
    this.lead(main);
    this.rest();
  }

  /** To the stage that a link led to, or to where this place was scrolled, once it is there. */
  lead(main) {
    const { store } = this,
      busy = main.querySelector(".working") !== null;
    const stage = store.goal && document.getElementById(`stage-${store.goal}`);
    if (stage) {
      stage.setAttribute("tabindex", "-1");
      stage.scrollIntoView({ block: "start" });
      stage.focus({ preventScroll: true });
      store.goal = "";
      return;
    }
    if (!busy) store.goal = "";
    if (store.scroll === null) return;
    const most = document.documentElement.scrollHeight - innerHeight;
    if (busy && most < store.scroll) return;
    scrollTo({ top: store.scroll, behavior: "instant" });
    store.scroll = null;
  }
}

/** What is selected of the answer, as places in its text; drawing it again would let go of it. */
function selection() {
  const output = document.querySelector(".output"),
    own = getSelection();
  if (!output || own.isCollapsed || !own.rangeCount) return null;
  const range = own.getRangeAt(0);
  if (!output.contains(range.startContainer) || !output.contains(range.endContainer)) return null;
  const before = document.createRange();
  before.selectNodeContents(output);
  before.setEnd(range.startContainer, range.startOffset);
  const start = before.toString().length;
  return { start, end: start + range.toString().length, text: output.textContent };
}

function select(wanted) {
  const output = document.querySelector(".output");
  if (!wanted || output?.textContent !== wanted.text) return;
  const range = document.createRange(),
    texts = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
  let at = 0;
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const next = at + node.length;
    if (wanted.start >= at && wanted.start < next) range.setStart(node, wanted.start - at);
    if (wanted.end > at && wanted.end <= next) range.setEnd(node, wanted.end - at);
    at = next;
  }
  getSelection().removeAllRanges();
  getSelection().addRange(range);
}

/** Where the tokens stand; what sticks below them must know how high they are. */
function stripsPlace() {
  const made = el("div", { class: "strips" });
  whenSized(made, () => document.documentElement.style.setProperty("--strips", `${made.offsetHeight}px`));
  return made;
}

function scrolls() {
  return [...document.querySelectorAll(".scroll")]
    .map((own) => ({ label: own.getAttribute("aria-label"), left: own.scrollLeft, top: own.scrollTop }))
    .filter(({ left, top }) => left || top);
}

function preferred(languages) {
  const own = navigator.languages.map((code) => code.split("-")[0]);
  return (
    own.find((code) => code !== "en" && languages.includes(code)) ?? (languages.includes("it") ? "it" : (languages[0] ?? ""))
  );
}

/** The view, or what stands in its place: nothing asked yet, still working, something wrong. */
function content(app, view) {
  const { session, state } = app,
    parts = [];
  if (view.free) return view.draw(app);
  if (session.problem)
    return [trouble(app, session.problem, () => (session.models ? app.again() : app.start()), { title: "That did not work" })];
  if (!session.models) return [working("Looking which models there are")];
  const card = session.card(state);
  if (!card && !session.carried) return [unknown(app)];
  if (!session.carried && !state.text.trim()) return [empty(app, card)];
  for (const warning of session.warnings) parts.push(el("p", { class: "card warning", text: warning }));
  if (session.trace || (view.early && session.answer)) {
    if (session.working) parts.push(working("The answer is here; its trace is being made"));
    if (session.traceProblem) parts.push(noTrace(app));
    return [...parts, ...view.draw(app)];
  }
  if (session.traceProblem) return [...parts, noTrace(app)];
  return [...parts, working("The model is at work")];
}

function empty(app, card) {
  const kinds = Object.keys(EXAMPLES).filter((own) => card.verbs.includes(own));
  const examples = kinds.flatMap((own) => EXAMPLES[own]).slice(0, 5);
  const list = examples.map((text) =>
    el(
      "li",
      {},
      button(text, () => app.ask({ text }), { class: "example" }),
    ),
  );
  return el(
    "div",
    { class: "card empty" },
    el("h2", { text: "Type a sentence above, or take one of these" }),
    el("ul", {}, list),
  );
}

function unknown(app) {
  const others = app.session.models.map((model) => button(model.name, () => app.choose(model.name), { class: "example" }));
  return el(
    "div",
    { class: "card trouble", role: "alert" },
    el("h2", { text: `There is no model “${app.state.model}” here` }),
    el("p", { text: "These are loaded:" }),
    el("p", {}, others),
  );
}

function noTrace(app) {
  return trouble(app, app.session.traceProblem, () => app.retry(), { lead: "How the answer came about can't be shown: " });
}

dress();
const app = new App();
app.start().catch((error) => {
  say("The page could not be drawn");
  document
    .getElementById("view")
    .replaceChildren(el("p", { class: "card trouble", role: "alert", text: `The page could not be drawn: ${error.message}` }));
});
