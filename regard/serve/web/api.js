// What is asked of the server; a page in one file carries its trace and asks nobody.

const KEY = "regard-key";

/** Something that could not be had: the message says what to do. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** The trace that this file carries, or null where there is a server. */
export function carried() {
  const element = document.getElementById("trace");
  return element ? JSON.parse(element.textContent) : null;
}

/** The API key to send from now on; without one, none. */
export function remember(key) {
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    /* a browser that keeps nothing: it holds for this page */
  }
  known = key;
}

export function remembered() {
  return known;
}

let known = stored();

function stored() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** Any key as a header can hold it: its bytes, each as the character of that number. */
function bytes(key) {
  return String.fromCharCode(...new TextEncoder().encode(key));
}

export async function ask(path, body, signal) {
  const headers = body ? { "content-type": "application/json" } : {};
  if (known) headers.authorization = `Bearer ${bytes(known)}`;
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. Is it still running? Start it again with regard serve, then try again.");
  }
  if (response.ok) return response.json();
  throw new Problem(await complaint(response), response.status);
}

async function complaint(response) {
  const after = response.headers.get("retry-after");
  const said = await response.json().then(
    (found) => found.error?.message ?? found.error ?? found.detail,
    () => null,
  );
  if (response.status === 404 && typeof said !== "string")
    return "This server has no such answer; it may be of an older version.";
  const text = typeof said === "string" ? said : `The server answered ${response.status}.`;
  return response.status === 429 ? `${text} Try again${after ? ` in ${after} s` : ""}.` : text;
}

/** Which verb a text is for: the first that the model has; fill where a word is missing. */
export function verb(card, text) {
  const able = ["translate", "generate", "fill", "classify", "embed"].filter((own) => card.verbs.includes(own));
  const gap = text.includes("[MASK]") || text.includes("<mask>");
  return able.find((own) => own !== "fill" || gap || able.length === 1) ?? null;
}

/** How words are to be chosen, as the verb takes it. */
export function options(state, own) {
  if (own === "translate") {
    const size = state.beam || 4,
      wishes = { beam_size: size };
    if (size > 1) wishes.n_best = Math.min(size, 4);
    if (state.penalty !== "") wishes.length_penalty = Number(state.penalty);
    return wishes;
  }
  if (own !== "generate") return {};
  const temperature = state.temperature === "" ? 0.8 : Number(state.temperature);
  const chance = temperature > 0 ? { temperature, top_p: 0.95, seed: state.seed } : { beam_size: 1 };
  return { max_length: state.length || 40, ...chance };
}

export function models(signal) {
  return ask("api/models", null, signal).then((found) => found.models);
}

/** The answers alone, which are there first: {pieces: [{given, answer}], around, warnings}. A translation is asked for in parts. */
export async function answer(state, own, signal) {
  const body = { model: state.model, texts: [state.text], ...options(state, own) };
  if (own === "translate") Object.assign(body, { alignment: true, parts: true, ...(state.to ? { to: state.to } : {}) });
  if (own === "fill") body.choices = 8;
  const found = await ask(`api/${own}`, body, signal),
    [said] = found.answers;
  const pieces = said.parts?.map(({ given, ...rest }) => ({ given, answer: rest })) ?? [{ given: state.text, answer: said }];
  return { pieces, around: said.around ?? ["", ""], warnings: found.warnings };
}

/** The trace of a text, or some parts of it. */
export function trace(state, text, own, parts, layers, signal) {
  const body = { model: state.model, text, verb: own, parts, options: options(state, own) };
  if (own === "translate" && state.to) body.to = state.to;
  if (layers) body.layers = layers;
  return ask("api/trace", body, signal);
}
