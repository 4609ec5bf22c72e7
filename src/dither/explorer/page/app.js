// The page's one program: fields in, curves out. While something moves it shows a preview; when it
// rests, the exact plan replaces it part by part.

import { Chart, shown, svg } from "./charts.js";

const NOISES = ["uniform", "matched", "optimal"];
const REST = 350;
const RANGES = {
  epsilon: { low: 0.1, high: 10, label: "budget ε", unit: "nats", group: "budget" },
  delta: { low: 1e-10, high: 1e-2, label: "δ", unit: "probability", group: "budget" },
  dataset_size: { low: 1e3, high: 1e6, whole: true, label: "dataset size n", unit: "records", group: "data" },
  batch_size: { low: 16, high: 8192, whole: true, label: "batch size m", unit: "records", group: "data" },
  clip_norm: { low: 0.01, high: 100, label: "clip norm C", unit: "gradient", group: "data" },
  epochs: { low: 1, high: 100, label: "epochs", unit: "passes", group: "steps" },
  dimension: { low: 10, high: 1e9, whole: true, label: "dimension d", unit: "parameters", group: "problem" },
  smoothness: { low: 0.01, high: 100, label: "smoothness L", unit: "1/length²", group: "problem" },
  initial_gap: { low: 0.01, high: 100, label: "initial gap", unit: "loss", group: "problem" },
};
const CHOICES = {
  schedule: { label: "step sizes", group: "steps" },
  noise: { label: "noise to save", group: "shape" },
  sampling: { label: "sampling", group: "shape" },
};
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

const element = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token") ?? "";
const page = crypto.randomUUID();
const fields = new Map();
let form = null;
let number = 0;
let exact = {};
let latest = null;
let moving = false;
let waiting = false;
let timer = 0;

const charts = {
  noise: new Chart(element("chart-noise"), {
    title: "Noise", axis: "noise multiplier z (clip norms)", spoken: "Noise multiplier over the steps", logarithmic: true }),
  reaching: new Chart(element("chart-reaching"), {
    title: "Noise that reaches the parameters", axis: "η·z (clip norms)", spoken: "Step size times noise over the steps", logarithmic: true }),
  spent: new Chart(element("chart-spent"), {
    title: "Privacy spent", axis: "ε after t steps (nats)", spoken: "ε over the steps", logarithmic: false }),
};

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

async function call(path, body) {
  const answer = await fetch(path, {
    method: body ? "POST" : "GET",
    headers: { "X-Dither-Token": token, ...(body && { "Content-Type": "application/json" }) },
    ...(body && { body: JSON.stringify(body) }),
  });
  if (![200, 409, 422].includes(answer.status)) throw new Error((await answer.text()).trim());
  return answer.json();
}

// Fields

function toSlider({ low, high }, value) {
  return (1000 * Math.log(value / low)) / Math.log(high / low);
}

function fromSlider({ low, high, whole }, at) {
  const value = low * (high / low) ** (at / 1000);
  const short = Number(value.toPrecision(3));
  return whole ? String(Math.max(1, Math.round(short))) : String(short).replace("e+", "e");
}

function field(name, label, unit, control, parent) {
  const id = `field-${name}`;
  const problem = make("p", { className: "problem", id: `${id}-problem`, hidden: true });
  control.id = id;
  control.setAttribute("aria-describedby", problem.id);
  const caption = make("label", { htmlFor: id }, label);
  if (unit) caption.append(make("small", {}, unit));
  const box = make("div", { className: "field" }, make("div", { className: "row" }, caption, control));
  parent.append(box);
  fields.set(name, { control, problem, box });
  return { box, problem };
}

function addNumber(name, range) {
  const input = make("input", { type: "text", inputMode: "decimal", spellcheck: false, value: form.defaults[name] });
  const { box, problem } = field(name, range.label, range.unit, input, element(range.group));
  const slider = make("input", { type: "range", min: 0, max: 1000, step: 1 });
  slider.setAttribute("aria-label", `${range.label}, slider`);
  slider.dataset.slider = name;
  const follow = () => {
    const value = Number(input.value);
    if (value > 0) slider.value = toSlider(range, value);
    slider.setAttribute("aria-valuetext", input.value);
  };
  slider.addEventListener("input", () => { input.value = fromSlider(range, Number(slider.value)); follow(); changed(); });
  input.addEventListener("input", () => { follow(); changed(); });
  box.append(slider, problem);
  fields.get(name).follow = follow;
  follow();
}

function addChoice(name, { label, group }) {
  const select = make("select", {}, ...form.choices[name].map((value) => make("option", { value }, value)));
  select.value = form.defaults[name];
  const { box, problem } = field(name, label, "", select, element(group));
  box.append(problem);
  select.addEventListener("change", () => {
    if (name === "schedule") addParameters(form.parameters[select.value]);
    if (name === "noise") render();
    changed();
  });
}

function addParameters(values) {
  for (const name of [...fields.keys()].filter((key) => key.startsWith("parameters."))) {
    fields.get(name).box.remove();
    fields.delete(name);
  }
  for (const [name, value] of Object.entries(values)) {
    const input = make("input", { type: "text", inputMode: "decimal", spellcheck: false, value });
    const { box, problem } = field(`parameters.${name}`, name, "", input, element("steps"));
    box.append(problem);
    input.addEventListener("input", changed);
  }
}

function settings() {
  const given = { parameters: {} };
  for (const [name, { control }] of fields) {
    if (name.startsWith("parameters.")) given.parameters[name.slice(11)] = control.value;
    else given[name] = control.value;
  }
  return given;
}

function showProblems(problems) {
  for (const [name, { control, problem }] of fields) {
    const message = problems[name] ?? "";
    if (problem.textContent !== message) problem.textContent = message;
    problem.hidden = !message;
    control.setAttribute("aria-invalid", message ? "true" : "false");
  }
  const rest = Object.entries(problems).filter(([name]) => !fields.has(name)).map(([, message]) => message);
  element("general").textContent = rest.join(" ");
  element("general").hidden = !rest.length;
  const wrong = Object.keys(problems).length > 0;
  for (const id of ["copy-python", "copy-command", "save"]) element(id).disabled = wrong;
  for (const part of document.querySelectorAll(".charts, .facts, #compared, #prices, #code")) {
    part.classList.toggle("stale", wrong);
  }
  if (wrong) say("wrong", "Some value is not allowed");
  return wrong;
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
        if (mine === number) showProblems(found.errors);
      } else {
        if (mine === number) showProblems({});
        latest = found;
        render();
      }
    } catch (problem) {
      say("wrong", `The server does not answer: ${problem.message}`);
    }
  } while (waiting);
  moving = false;
}

async function refine() {
  const mine = number;
  if (moving) { timer = setTimeout(refine, 60); return; }
  if (element("status").dataset.state === "wrong") return;
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
      if (mine === number) say("wrong", `The server does not answer: ${problem.message}`);
      return;
    }
    if (mine !== number || answer.superseded) return;
    if (answer.errors) { showProblems(answer.errors); return; }
    if (answer.problem && noise === given.noise) { showProblems({ [answer.field]: answer.problem }); return; }
    Object.assign(found[noise], answer);
    exact = found;
    render();
  }
  say("exact", "Exact");
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
  for (const [part, chart] of Object.entries(charts)) {
    chart.show(curvesOf(part), { state: have(part) ? "exact" : "preview", chosen, ...(part === "spent" && target > 0 && { target }) });
  }
  renderCompared(chosen);
  renderPrices(chosen);
  element("code").textContent = latest.python;
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

async function copy(kind) {
  const text = latest[kind];
  element("code").textContent = text;
  try {
    await navigator.clipboard.writeText(text);
    element("said").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(element("code"));
    element("said").textContent = "Selected below: copy it by hand.";
  }
}

async function freshCode(kind) {
  while (moving) await new Promise((resolve) => setTimeout(resolve, 30));
  if (!element("save").disabled) await copy(kind);
}

async function save() {
  const given = settings();
  element("said").textContent = "Planning …";
  element("save").disabled = true;
  try {
    const found = await call("/api/exact", { page, number, settings: given, noise: given.noise, part: "json" });
    if (found.superseded) { element("said").textContent = "Something changed meanwhile; save again."; return; }
    if (found.errors || found.problem) {
      element("said").textContent = "";
      showProblems(found.errors ?? { [found.field]: found.problem });
      return;
    }
    const link = make("a", { href: URL.createObjectURL(new Blob([found.json], { type: "application/json" })), download: "plan.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    element("said").textContent = "Saved as plan.json: dither.Plan.from_json reads it.";
  } catch (problem) {
    element("said").textContent = `Not saved: ${problem.message}`;
  } finally {
    element("save").disabled = [...fields.values()].some(({ problem }) => !problem.hidden);
  }
}

// The settings live in the address, so that a reload keeps them.

function remember() {
  const { parameters, ...rest } = settings();
  const flat = { ...rest, ...Object.fromEntries(Object.entries(parameters).map(([key, value]) => [`parameters.${key}`, value])) };
  history.replaceState(null, "", `#${new URLSearchParams(flat)}`);
}

function recall() {
  const said = new URLSearchParams(location.hash.slice(1));
  const schedule = said.get("schedule");
  if (form.choices.schedule.includes(schedule)) {
    fields.get("schedule").control.value = schedule;
    addParameters(form.parameters[schedule]);
  }
  for (const [name, { control, follow }] of fields) {
    if (said.has(name) && (control.tagName !== "SELECT" || form.choices[name].includes(said.get(name)))) {
      control.value = said.get(name);
      follow?.();
    }
  }
}

function addLegend() {
  element("legend").replaceChildren(...NOISES.map((name) => {
    const sample = svg("svg", { viewBox: "0 0 44 10", "aria-hidden": "true" });
    sample.append(svg("line", { class: `curve ${name}`, x1: 0, x2: 44, y1: 5, y2: 5 }));
    return make("li", {}, sample, `${name} noise`);
  }));
}

async function start() {
  addLegend();
  try {
    form = await call("/api/form");
  } catch (problem) {
    say("wrong", problem.message);
    return;
  }
  for (const [name, range] of Object.entries(RANGES)) addNumber(name, range);
  for (const [name, choice] of Object.entries(CHOICES)) addChoice(name, choice);
  addParameters(form.parameters[form.defaults.schedule]);
  recall();
  element("controls").addEventListener("submit", (event) => event.preventDefault());
  element("copy-python").addEventListener("click", () => freshCode("python"));
  element("copy-command").addEventListener("click", () => freshCode("command"));
  element("save").addEventListener("click", save);
  changed();
}

start();
