// Runs: the curves of trainings, while they are written.

import { ask, remembered } from "./api.js";
import { chart } from "./chart.js";
import { count, el, fold, intro, short, table, working } from "./dom.js";
import { trouble } from "./trouble.js";

export const runs = { free: true, draw };

const EVERY = 3000; // milliseconds between looks
const MOST = 500; // points of a curve
const known = { list: null, records: new Map(), problem: null, key: "", timer: null, busy: false };
const WHY = [
  "Loss is the mean of −log p of the right word: what training makes smaller. On text that was kept apart (dev) it says whether what was learned holds elsewhere; where it rises while the loss in training falls, the model learns by heart.",
  "BLEU compares translations with those of people, word sequence by word sequence. Tokens a second is how fast the machine learns.",
];
const COLOURS = { train: 0, dev: 1, test: 2 }; // the same in every chart
const FIGURES = [
  ["Loss", "loss"],
  ["BLEU", "bleu"],
  ["chrF", "chrf"],
  ["Accuracy", "accuracy"],
  ["Exact", "exact"],
  ["Perplexity", "perplexity", true],
  ["Tokens a second", "tokens_per_second"],
  ["Learning rate", "lr"],
  ["Gradient norm", "gradient_norm"],
];

function draw(app) {
  if (app.session.carried)
    return [
      el("p", { class: "card", text: "A page in one file has no trainings to watch; regard serve --runs DIR shows them." }),
    ];
  watch(app);
  const says = intro("runs", "Trainings in their folder, as they are written: the newest first.", WHY);
  if (known.problem && known.key !== remembered()) {
    known.problem = null; // asked with another key
    look(app);
  }
  if (known.problem) return [says, trouble(app, known.problem, () => look(app))];
  if (!known.list) return [says, working("Looking for trainings")];
  if (!known.list.length) return [says, none()];
  const own = known.list.find((run) => run.name === app.state.run) ?? known.list[0];
  return [says, el("div", { class: "runs" }, list(app, own), figures(own))];
}

function none() {
  return el(
    "div",
    { class: "card empty" },
    el("h2", { text: "No trainings to show" }),
    el("p", { text: "Start a training, and the server with its folder:" }),
    el("pre", {}, el("code", { text: "regard train recipe.toml --out runs/mine\nregard serve --runs runs" })),
  );
}

/** Looks now, and again while this view is open. */
function watch(app) {
  if (known.timer) return;
  known.timer = setInterval(() => {
    if (app.state.view === "runs") {
      if (!document.hidden && known.problem?.status !== 401) look(app);
      return;
    }
    clearInterval(known.timer);
    known.timer = null;
  }, EVERY);
  look(app);
}

async function look(app) {
  if (known.busy) return;
  known.busy = true;
  const before = JSON.stringify([known.list, known.problem?.message]);
  let news = false;
  try {
    known.list = (await ask("api/runs")).runs;
    known.problem = null;
    const own = known.list.find((run) => run.name === app.state.run) ?? known.list[0];
    if (own) news = await follow(own.name);
  } catch (problem) {
    [known.problem, known.key] = [problem, remembered()];
  }
  known.busy = false;
  if (app.state.view === "runs" && (news || before !== JSON.stringify([known.list, known.problem?.message]))) app.redraw();
}

/** What a run has written since it was last looked at. */
async function follow(name) {
  let news = !known.records.has(name),
    more = true;
  while (more) {
    const had = known.records.get(name) ?? { since: 0, records: [] };
    const found = await ask(`api/runs/${encodeURIComponent(name)}?since=${had.since}`);
    known.records.set(name, { since: found.since, records: [...(found.reset ? [] : had.records), ...found.records] });
    news ||= found.records.length > 0 || found.reset;
    more = found.more;
  }
  return news;
}

function list(app, own) {
  const rows = known.list.map((run) => {
    const part = run.steps && run.step !== null ? run.step / run.steps : 0,
      press = () => {
        app.set({ run: run.name });
        look(app);
      };
    return el(
      "li",
      {},
      el(
        "button",
        { type: "button", class: "run", "aria-pressed": String(run === own), key: `run-${run.name}`, on: { click: press } },
        el("b", { text: run.name }),
        el("span", {
          class: "muted",
          text: [
            run.task,
            run.step === null ? "not begun" : `step ${count(run.step)}${run.steps ? ` of ${count(run.steps)}` : ""}`,
            ago(run.updated),
          ]
            .filter(Boolean)
            .join(" · "),
        }),
        el("span", { class: "meter", "aria-hidden": "true", style: { "--part": Math.min(1, part) } }),
      ),
    );
  });
  return el("section", { class: "card" }, el("h2", { text: "Trainings" }), el("ul", { class: "run-list" }, rows));
}

function ago(seconds) {
  const past = Date.now() / 1000 - seconds;
  if (past < 90) return "just now";
  const [size, name] = past < 5400 ? [60, "min"] : past < 129600 ? [3600, "h"] : [86400, "days"];
  return `${Math.round(past / size)} ${name} ago`;
}

function figures(own) {
  const records = known.records.get(own.name)?.records;
  if (!records) return working("Reading its figures");
  const steps = records.map((record) => record.step).filter(Number.isFinite),
    reach = steps.length ? [Math.min(...steps), Math.max(...steps)] : null; // of every chart, so that they can be compared
  const charts = FIGURES.map(([label, field, logarithmic]) => curves(label, field, records, reach, logarithmic)).filter(Boolean);
  if (!charts.length)
    return el("p", { class: "card", text: "It has not written any figures yet; they appear here when it does." });
  return el(
    "div",
    {},
    newest(records),
    el(
      "div",
      { class: "columns" },
      charts.map((own) => el("section", { class: "card" }, own)),
    ),
  );
}

/** A figure in training and on dev; also its parts, such as BLEU by language. */
function curves(label, field, records, reach, logarithmic) {
  const series = new Map();
  for (const record of records) {
    for (const [name, value] of Object.entries(record)) {
      if (
        (name !== field && !name.startsWith(`${field}_`) && !name.startsWith(`${field}.`)) ||
        typeof value !== "number" ||
        name.startsWith("tokens") !== field.startsWith("tokens")
      )
        continue;
      const line = `${record.kind ?? ""}${name === field ? "" : ` ${name.slice(field.length + 1)}`}`;
      if (!series.has(line)) series.set(line, []);
      series.get(line).push([record.step, value]);
    }
  }
  if (!series.size) return null;
  const others = [...series.keys()].filter((name) => !(name in COLOURS));
  const lines = [...series].map(([name, points]) => ({
    name,
    points: thinned(points),
    paint: COLOURS[name] ?? Object.keys(COLOURS).length + others.indexOf(name),
  }));
  return chart({ label, series: lines, x: "step", y: "", high: 220, key: `chart-${field}`, reach, named: true, logarithmic });
}

function thinned(points) {
  if (points.length <= MOST) return points;
  const every = points.length / MOST;
  return Array.from({ length: MOST }, (_, at) => points[at === MOST - 1 ? points.length - 1 : Math.floor(at * every)]);
}

function newest(records) {
  const last = ["train", "dev"].map((kind) => records.findLast((record) => record.kind === kind)).filter(Boolean);
  const columns = FIGURES.filter(([, name]) => last.some((record) => name in record));
  const rows = last.map((record) => [
    record.kind,
    count(record.step),
    ...columns.map(([, name]) => (name in record ? short(record[name]) : "")),
  ]);
  return el(
    "section",
    { class: "card" },
    el("h2", { text: "Newest figures" }),
    table("Newest figures", ["", "step", ...columns.map(([label]) => label)], rows),
    fold("records", "Every record", () =>
      table(
        "Every record",
        ["step", "kind", "loss"],
        records
          .slice(-200)
          .reverse()
          .map((record) => [count(record.step ?? 0), record.kind ?? "", short(record.loss)]),
        { class: "numbers" },
      ),
    ),
  );
}
