// While a setting changes the page shows a preview; afterwards the exact plan replaces it part by
// part. Only settings that the server has accepted can be exported.

import { Chart, shown, svg } from "./charts.js";
import { addFields, element, fields, make, settings, showProblems, store } from "./fields.js";

const PREVIEWED = ["uniform", "matched", "optimal"];
const NOISES = [...PREVIEWED, "correlated"];
const DELAY = 350;
const COMPARISON = {
  first_noise_multiplier: "noise multiplier z, first step",
  last_noise_multiplier: "noise multiplier z, last step",
  bands: "bands of correlated noise",
  mean_variance_of_the_iterates: "mean variance of the iterates",
  variance_relative_to_uniform: "relative to uniform",
  noise_that_reaches_the_parameters: "noise on the parameters, Σ(ηz)²",
  relative_to_uniform: "relative to uniform",
  improvement_by_the_theorem: "improvement factor M_dp/M, by the paper’s theorem",
};
const ACCOUNTANTS = {
  pld: "pld, privacy loss distributions", rdp: "rdp, Rényi", gdp: "gdp, central limit theorem",
  theorem: "the paper’s theorem", advanced: "advanced composition",
};

const token = new URLSearchParams(location.search).get("token") ?? "";
const page = crypto.randomUUID();
let number = 0;
let accepted = null;
let exact = {};
let latest = null;
let saving = false;
let previewing = false;
let waiting = false;
let timer = 0;

const NOISE = { title: "Noise", axis: "noise multiplier z (clip norms)", description: "Noise multiplier over the steps", logarithmic: true };
const charts = [
  ["noise", new Chart(element("chart-noise"), NOISE)],
  ["noise", new Chart(element("chart-small"), { ...NOISE, axis: "z", height: 130 })],
  ["iterate_noise", new Chart(element("chart-iterate-noise"), {
    title: "Noise in the iterates", axis: "standard deviation (clip norms)", description: "Standard deviation of the iterates over the steps", logarithmic: true })],
  ["spent", new Chart(element("chart-spent"), {
    title: "Privacy spent", axis: "ε after t steps (nats)", description: "ε over the steps", logarithmic: false })],
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

function showStatus(state, text) {
  const status = element("status");
  status.dataset.state = state;
  if (status.textContent !== text) status.textContent = text;
}

// A change requests a preview, and after a pause the exact plan. Answers to older requests are ignored.

function changed() {
  number += 1;
  exact = {};
  element("message").textContent = "";
  showStatus("preview", "Preview");
  renderExport();
  store();
  clearTimeout(timer);
  timer = setTimeout(refine, DELAY);
  if (previewing) waiting = true;
  else preview();
}

async function preview() {
  previewing = true;
  do {
    waiting = false;
    const mine = number;
    try {
      const found = await call("/api/preview", { page, number: mine, settings: settings() });
      if (found.errors) {
        if (mine === number) refuse(found.errors);
      } else {
        latest = found;
        if (mine === number) accept();
        render();
      }
    } catch (problem) {
      if (mine === number) fail(problem.message);
    }
  } while (waiting);
  previewing = false;
}

async function refine() {
  const mine = number;
  if (previewing) { timer = setTimeout(refine, 60); return; }
  if (accepted !== number) return;
  const given = settings();
  const order = [given.noise, ...NOISES.filter((name) => name !== given.noise)];
  const parts = ["plan", "costs", "spending"].flatMap((part) => order.map((noise) => [part, noise]));
  const found = Object.fromEntries(NOISES.map((name) => [name, {}]));
  for (const [index, [part, noise]] of parts.entries()) {
    if (found[noise].problem) continue;
    showStatus("preview", `Preview; exact plan: part ${index + 1} of ${parts.length}`);
    let answer;
    try {
      answer = await call("/api/exact", { page, number: mine, settings: given, noise, part });
    } catch (problem) {
      if (mine === number) showStatus("wrong", problem.message);
      return;
    }
    if (mine !== number) return;
    if (answer.superseded) { showStatus("wrong", "The exact plan was not made: the server is stopping."); return; }
    if (answer.errors) { refuse(answer.errors); return; }
    if (answer.problem && noise === given.noise) { refuse({ [answer.field]: answer.problem }); return; }
    Object.assign(found[noise], answer);
    exact = found;
    render();
  }
  showStatus("exact", "Exact");
}

function accept() {
  accepted = number;
  showProblems({});
  fade(false);
}

function refuse(problems) {
  showProblems(problems);
  fail("A value is not allowed");
}

function fail(message) {
  accepted = null;
  showStatus("wrong", message);
  fade(true);
  renderExport();
}

function fade(stale) {
  for (const part of document.querySelectorAll("figure, .facts, #comparison, #costs")) part.classList.toggle("stale", stale);
}

// Results

function have(part) {
  return PREVIEWED.every((name) => exact[name] && (exact[name].problem || exact[name][part]));
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
  renderComparison(chosen);
  renderCosts(chosen);
  renderExport();
  element("statement").textContent = exact[chosen]?.statement
    ? `${chosen}: ${exact[chosen].statement}. Fingerprint ${exact[chosen].fingerprint.slice(0, 16)}.` : "";
  const notes = NOISES.map((name) => [name, exact[name]?.problem ?? exact[name]?.note])
    .filter(([, text]) => text).map(([name, text]) => `${name}: ${text}`);
  if (latest.note && !(have("noise") && exact[chosen]?.noise)) notes.push(latest.note);
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

function renderComparison(chosen) {
  const comparison = curvesOf("comparison");
  const rows = Object.entries(COMPARISON).map(
    ([key, label]) => [label, ...NOISES.map((name) => shown(comparison[name]?.[key] ?? null))]);
  rowsOf(element("comparison"), ["", ...NOISES], rows, chosen);
  badge("comparison", have("comparison") ? "exact" : "preview");
  const mine = comparison[chosen];
  const facts = [
    ["steps T", latest.steps.toLocaleString("en")],
    ["sample rate q = m/n", shown(latest.sample_rate)],
    ["variance of the iterates, relative to uniform", mine ? `× ${shown(mine.variance_relative_to_uniform, 3)}` : "–"],
  ];
  element("facts").replaceChildren(...facts.map(([label, value]) => make("p", {}, make("b", {}, value), label)));
}

function renderCosts(chosen) {
  const ready = have("costs");
  if (ready) {
    const cell = (row) => (row?.epsilon ? [row.epsilon, row.proven ? "proven" : "not proven"] : "–");
    const rows = Object.entries(ACCOUNTANTS).map(
      ([key, label]) => [label, ...NOISES.map((name) => cell(exact[name].costs?.[key]))]);
    rowsOf(element("costs"), ["", ...NOISES], rows, chosen);
  } else if (!element("costs").rows.length) {
    rowsOf(element("costs"), ["", ...NOISES], Object.values(ACCOUNTANTS).map((label) => [label, ...NOISES.map(() => "…")]), chosen);
  }
  element("costs").classList.toggle("stale", !ready);
  const node = document.querySelector('[data-badge="costs"]');
  node.dataset.state = ready ? "exact" : "preview";
  node.textContent = ready ? "exact" : "waiting for the exact plan";
}

// Export

function renderExport() {
  const ready = accepted === number;
  for (const id of ["copy-python", "save"]) element(id).disabled = !ready || saving;
  const text = ready ? latest.python : "";
  if (element("code").textContent !== text) element("code").textContent = text;
}

async function copy() {
  const mine = number;
  let message = "Copied.";
  try {
    await navigator.clipboard.writeText(latest.python);
  } catch {
    message = "Selected below: copy it by hand.";
  }
  if (mine !== number) return;
  if (message !== "Copied.") getSelection().selectAllChildren(element("code"));
  element("message").textContent = message;
}

async function save() {
  const mine = number;
  const given = settings();
  element("message").textContent = "Planning …";
  saving = true;
  renderExport();
  try {
    const found = await call("/api/exact", { page, number: mine, settings: given, noise: given.noise, part: "json" });
    if (mine !== number || found.superseded) {
      element("message").textContent = "Not saved: a setting has changed. Save again.";
    } else if (found.json) {
      download(found.json);
      element("message").textContent =
        `Saved as plan.json: ε = ${found.epsilon}, fingerprint ${found.fingerprint.slice(0, 16)}. Load it with dither.Plan.from_json.`;
    } else {
      element("message").textContent = "";
      refuse(found.errors ?? { [found.field]: found.problem });
    }
  } catch (problem) {
    element("message").textContent = `Not saved: ${problem.message}`;
  } finally {
    saving = false;
    renderExport();
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
    showStatus("wrong", problem.message);
    return;
  }
  element("controls").addEventListener("submit", (event) => event.preventDefault());
  element("copy-python").addEventListener("click", copy);
  element("save").addEventListener("click", save);
  changed();
}

start();
