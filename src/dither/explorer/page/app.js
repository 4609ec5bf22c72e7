// Fields in, curves out. While something moves the page shows a preview; when it rests, the exact
// plan replaces it part by part. What can be taken away is what the server has confirmed.

import { Chart, shown, svg } from "./charts.js";
import { addFields, element, fields, make, remember, settings, showProblems } from "./fields.js";

const NOISES = ["uniform", "matched", "optimal"];
const REST = 350;
const COMPARED = {
  first_noise_multiplier: "noise multiplier z, first step",
  last_noise_multiplier: "noise multiplier z, last step",
  noise_that_reaches_the_parameters: "noise that reaches the parameters, Σ(ηz)²",
  relative_to_uniform: "relative to uniform",
  improvement_by_the_theorem: "improvement factor M_dp/M, by the paper’s cost",
  utility_bound: "utility bound, min E‖∇F‖²",
};
const ACCOUNTANTS = {
  pld: "pld, numerical composition", rdp: "rdp, Rényi", gdp: "gdp, central limit",
  theorem: "the paper’s theorem", advanced: "the paper’s lemmas",
};

const token = new URLSearchParams(location.search).get("token") ?? "";
const page = crypto.randomUUID();
let number = 0;
let confirmed = null;
let exact = {};
let latest = null;
let code = "python";
let saving = false;
let moving = false;
let waiting = false;
let timer = 0;

const NOISE = { title: "Noise", axis: "noise multiplier z (clip norms)", spoken: "Noise multiplier over the steps", logarithmic: true };
const charts = [
  ["noise", new Chart(element("chart-noise"), NOISE)],
  ["noise", new Chart(element("chart-small"), { ...NOISE, axis: "z", height: 130 })],
  ["reaching", new Chart(element("chart-reaching"), {
    title: "Noise that reaches the parameters", axis: "η·z (clip norms)", spoken: "Step size times noise over the steps", logarithmic: true })],
  ["spent", new Chart(element("chart-spent"), {
    title: "Privacy spent", axis: "ε after t steps (nats)", spoken: "ε over the steps", logarithmic: false })],
];

async function call(path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method: body ? "POST" : "GET",
      headers: { "X-Dither-Token": token, ...(body && { "Content-Type": "application/json" }) },
      ...(body && { body: JSON.stringify(body) }),
    });
  } catch {
    throw new Error("The server does not answer. Is dither explore still running?");
  }
  if (![200, 409, 422].includes(answer.status)) throw new Error((await answer.text()).trim());
  return answer.json();
}

function say(state, text) {
  const status = element("status");
  status.dataset.state = state;
  if (status.textContent !== text) status.textContent = text;
}

// From a change to a preview, and from rest to the exact plan: the newest wins.

function changed() {
  number += 1;
  exact = {};
  element("said").textContent = "";
  say("preview", "Preview");
  offer();
  remember();
  clearTimeout(timer);
  timer = setTimeout(refine, REST);
  if (moving) waiting = true;
  else preview();
}

async function preview() {
  moving = true;
  do {
    waiting = false;
    const mine = number;
    try {
      const found = await call("/api/preview", { page, number: mine, settings: settings() });
      if (found.errors) {
        if (mine === number) refused(found.errors);
      } else {
        latest = found;
        if (mine === number) accepted();
        render();
      }
    } catch (problem) {
      if (mine === number) failed(problem.message);
    }
  } while (waiting);
  moving = false;
}

async function refine() {
  const mine = number;
  if (moving) { timer = setTimeout(refine, 60); return; }
  if (confirmed !== number) return;
  const given = settings();
  const order = [given.noise, ...NOISES.filter((name) => name !== given.noise)];
  const parts = ["plan", "prices", "spending"].flatMap((part) => order.map((noise) => [part, noise]));
  const found = Object.fromEntries(NOISES.map((name) => [name, {}]));
  for (const [index, [part, noise]] of parts.entries()) {
    if (found[noise].problem) continue;
    say("preview", `Preview; exact plan: part ${index + 1} of ${parts.length}`);
    let answer;
    try {
      answer = await call("/api/exact", { page, number: mine, settings: given, noise, part });
    } catch (problem) {
      if (mine === number) say("wrong", problem.message);
      return;
    }
    if (mine !== number) return;
    if (answer.superseded) { say("wrong", "The exact plan was not made: the server is ending."); return; }
    if (answer.errors) { refused(answer.errors); return; }
    if (answer.problem && noise === given.noise) { refused({ [answer.field]: answer.problem }); return; }
    Object.assign(found[noise], answer);
    exact = found;
    render();
  }
  say("exact", "Exact");
}

function accepted() {
  confirmed = number;
  showProblems({});
  fade(false);
}

function refused(problems) {
  showProblems(problems);
  failed("Some value is not allowed");
}

function failed(message) {
  confirmed = null;
  say("wrong", message);
  fade(true);
  offer();
}

function fade(stale) {
  for (const part of document.querySelectorAll("figure, .facts, #compared, #prices")) part.classList.toggle("stale", stale);
}

// What is shown

function have(part) {
  return NOISES.every((name) => exact[name] && (exact[name].problem || exact[name][part]));
}

function curvesOf(part) {
  const source = have(part) ? exact : latest.curves;
  return Object.fromEntries(NOISES.filter((name) => source[name]?.[part]).map((name) => [name, source[name][part]]));
}

function badge(name, state) {
  const node = document.querySelector(`[data-badge="${name}"]`);
  node.dataset.state = state;
  node.textContent = state;
}

function render() {
  if (!latest) return;
  const chosen = fields.get("noise").control.value;
  const target = Number(fields.get("epsilon").control.value);
  for (const [part, chart] of charts) {
    chart.show(curvesOf(part), { state: have(part) ? "exact" : "preview", chosen, ...(part === "spent" && target > 0 && { target }) });
  }
  renderCompared(chosen);
  renderPrices(chosen);
  offer();
  element("statement").textContent = exact[chosen]?.statement
    ? `${chosen}: ${exact[chosen].statement}. Fingerprint ${exact[chosen].fingerprint.slice(0, 16)}.` : "";
  const notes = NOISES.filter((name) => exact[name]?.problem).map((name) => `${name}: ${exact[name].problem}`);
  if (latest.note && !have("noise")) notes.push(latest.note);
  element("note").textContent = notes.join(" ");
  element("note").hidden = !notes.length;
}

function rowsOf(table, head, rows, chosen) {
  const cells = (names, tag) => names.map((name, index) => {
    const cell = make(index ? tag : "th", { scope: tag === "th" ? "col" : "row" });
    if (Array.isArray(name)) cell.append(name[0], make("small", {}, name[1]));
    else cell.append(name);
    cell.classList.toggle("is-chosen", index > 0 && NOISES[index - 1] === chosen);
    return cell;
  });
  table.replaceChildren(
    make("thead", {}, make("tr", {}, ...cells(head, "th"))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row, "td")))));
}

function renderCompared(chosen) {
  const compared = curvesOf("compared");
  const rows = Object.entries(COMPARED).map(
    ([key, label]) => [label, ...NOISES.map((name) => shown(compared[name]?.[key] ?? null))]);
  rowsOf(element("compared"), ["", ...NOISES], rows, chosen);
  badge("compared", have("compared") ? "exact" : "preview");
  const mine = compared[chosen];
  const facts = [
    ["steps T", latest.steps.toLocaleString("en")],
    ["sample rate q = m/n", shown(latest.sample_rate)],
    ["noise on the parameters, against uniform", mine ? `× ${shown(mine.relative_to_uniform, 3)}` : "–"],
    ["utility bound, min E‖∇F‖²", mine ? shown(mine.utility_bound, 3) : "–"],
  ];
  element("facts").replaceChildren(...facts.map(([label, value]) => make("p", {}, make("b", {}, value), label)));
}

function renderPrices(chosen) {
  const ready = have("prices");
  if (ready) {
    const cell = (row) => (row?.epsilon ? [row.epsilon, row.proven ? "proven" : "not proven"] : "–");
    const rows = Object.entries(ACCOUNTANTS).map(
      ([key, label]) => [label, ...NOISES.map((name) => cell(exact[name].prices?.[key]))]);
    rowsOf(element("prices"), ["", ...NOISES], rows, chosen);
  } else if (!element("prices").rows.length) {
    rowsOf(element("prices"), ["", ...NOISES], Object.values(ACCOUNTANTS).map((label) => [label, "…", "…", "…"]), chosen);
  }
  element("prices").classList.toggle("stale", !ready);
  const node = document.querySelector('[data-badge="prices"]');
  node.dataset.state = ready ? "exact" : "preview";
  node.textContent = ready ? "exact" : "waits for the exact plan";
}

// Taking it away

function offer() {
  const ready = confirmed === number;
  for (const id of ["copy-python", "copy-command", "save"]) element(id).disabled = !ready || saving;
  const text = ready ? latest[code] : "";
  if (element("code").textContent !== text) element("code").textContent = text;
}

async function copy(kind) {
  const mine = number;
  code = kind;
  offer();
  let said = "Copied.";
  try {
    await navigator.clipboard.writeText(latest[kind]);
  } catch {
    said = "Selected below: copy it by hand.";
  }
  if (mine !== number) return;
  if (said !== "Copied.") getSelection().selectAllChildren(element("code"));
  element("said").textContent = said;
}

async function save() {
  const mine = number;
  const given = settings();
  element("said").textContent = "Planning …";
  saving = true;
  offer();
  try {
    const found = await call("/api/exact", { page, number: mine, settings: given, noise: given.noise, part: "json" });
    if (mine !== number || found.superseded) {
      element("said").textContent = "Not saved: something changed meanwhile. Save again.";
    } else if (found.json) {
      download(found.json);
      element("said").textContent =
        `Saved as plan.json: ε = ${found.epsilon}, fingerprint ${found.fingerprint.slice(0, 16)}. dither.Plan.from_json reads it.`;
    } else {
      element("said").textContent = "";
      refused(found.errors ?? { [found.field]: found.problem });
    }
  } catch (problem) {
    element("said").textContent = `Not saved: ${problem.message}`;
  } finally {
    saving = false;
    offer();
  }
}

function download(text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: "plan.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function addLegends() {
  for (const legend of document.querySelectorAll(".legend")) {
    legend.replaceChildren(...NOISES.map((name) => {
      const sample = svg("svg", { viewBox: "0 0 44 10", "aria-hidden": "true" });
      sample.append(svg("line", { class: `curve ${name}`, x1: 0, x2: 44, y1: 5, y2: 5 }));
      return make("li", {}, sample, name);
    }));
  }
}

async function start() {
  addLegends();
  try {
    addFields(await call("/api/form"), changed);
  } catch (problem) {
    say("wrong", problem.message);
    return;
  }
  element("controls").addEventListener("submit", (event) => event.preventDefault());
  element("copy-python").addEventListener("click", () => copy("python"));
  element("copy-command").addEventListener("click", () => copy("command"));
  element("save").addEventListener("click", save);
  changed();
}

start();
