// The top of the page: whose model it is, the six views, and light or dark.

import { isDark } from "./colour.js";
import { button, count, el, svg } from "./dom.js";
import { VIEWS, address } from "./state.js";

const THEME = "regard-theme";

/** Light or dark as chosen here before; else as the system says. */
export function dress() {
  const chosen = kept();
  if (chosen) document.documentElement.dataset.theme = chosen;
}

function kept() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null; // a browser that keeps nothing
  }
}

function turn(app) {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem(THEME, chosen);
  } catch {
    /* then it holds for this page */
  }
  app.redraw();
}

function eye() {
  return svg(
    "svg",
    { viewBox: "0 0 32 20", class: "eye", "aria-hidden": "true" },
    svg("path", { d: "M1 10 Q16 -7 31 10 Q16 27 1 10 Z", fill: "none", stroke: "currentColor", "stroke-width": 2 }),
    svg("circle", { cx: 16, cy: 10, r: 4.5, fill: "currentColor" }),
  );
}

export function header(app) {
  const state = app.state,
    dark = isDark();
  const tabs = Object.entries(VIEWS)
    .filter(([name]) => name !== "runs" || !app.session.carried)
    .map(([name, title], place) =>
      el("a", {
        href: address({ ...state, view: name }),
        text: title,
        key: `view-${name}`,
        "aria-current": name === state.view ? "page" : null,
        title: `${title} (${place + 1})`,
      }),
    );
  return [
    el("h1", {}, eye(), "regard"),
    picker(app),
    el("nav", { "aria-label": "Views" }, tabs),
    el(
      "div",
      { class: "tools" },
      button(dark ? "☀" : "☾", () => turn(app), {
        key: "theme",
        "aria-label": dark ? "Light" : "Dark",
        title: dark ? "Light" : "Dark",
      }),
      button("?", () => app.help(), { key: "help", "aria-label": "Keys", title: "Keys (?)" }),
    ),
  ];
}

function picker(app) {
  const models = app.session.models ?? [];
  if (models.length < 2) return el("p", { class: "model" }, el("b", { text: models[0]?.name ?? "" }), facts(models[0]));
  const options = models.map((model) =>
    el("option", { value: model.name, text: model.name, selected: model.name === app.state.model }),
  );
  const select = el(
    "select",
    { "aria-label": "Model", key: "model", on: { change: (event) => app.choose(event.target.value) } },
    options,
  );
  return el("p", { class: "model" }, select, facts(app.session.card(app.state)));
}

function facts(model) {
  if (!model) return null;
  const size = model.parameters >= 1e6 ? `${Math.round(model.parameters / 1e6)} M` : count(model.parameters);
  const kind =
    { seq2seq: "encoder-decoder", lm: "language model", encoder: "encoder", rnn: "recurrent" }[model.kind] ?? model.kind;
  return el("span", { class: "muted", text: ` ${kind}, ${size} parameters` });
}
