// What could not be had, in the place where it would stand: why, and what to do about it.

import { remember, remembered } from "./api.js";
import { button, el } from "./dom.js";

const ASK_AGAIN = new Set([0, 408, 425, 429]); // and whatever went wrong in the server: another time it may work

/** A card that says what went wrong; `again` is pressed to try once more, where that can help. */
export function trouble(app, problem, again, { title = null, lead = "" } = {}) {
  if (problem.status === 401) return keyForm(app);
  const helps = ASK_AGAIN.has(problem.status) || problem.status >= 500;
  return el(
    "div",
    { class: "card trouble", role: "alert" },
    title && el("h2", { text: title }),
    el("p", { text: `${lead}${problem.message}` }),
    helps && button("Try again", again, { class: "go", key: "again" }),
  );
}

/** Made once: what was typed stays while the page around it is drawn again. */
const field = el("input", { type: "password", autocomplete: "off", "aria-label": "API key", key: "api-key" });

/** Asks for the key, and says so where the last one was not taken. */
function keyForm(app) {
  const refused = remembered() !== "";
  field.setAttribute("aria-invalid", String(refused));
  const send = (event) => {
    event.preventDefault();
    const key = field.value;
    if (!key) return field.focus();
    field.value = "";
    remember(key);
    return app.start();
  };
  return el(
    "form",
    { class: "card empty", on: { submit: send } },
    el("h2", { text: "This server wants its API key" }),
    refused && el("p", { class: "refused", role: "alert", text: "That key was not taken." }),
    el("p", {}, field, " ", el("button", { class: "go", text: "Go on" })),
  );
}
