// The settings: their fields, their errors, and the address that stores them.

const RANGES = {
  epsilon: { low: 0.1, high: 10, label: "budget ε", unit: "nats", group: "budget" },
  delta: { low: 1e-10, high: 1e-2, label: "δ", unit: "probability", group: "budget" },
  dataset_size: { low: 1e3, high: 1e6, integer: true, label: "dataset size n", unit: "records", group: "data" },
  batch_size: { low: 16, high: 8192, integer: true, label: "batch size m", unit: "records", group: "data" },
  clip_norm: { low: 0.01, high: 100, label: "clip norm C", unit: "l2 norm", group: "data" },
  epochs: { low: 1, high: 100, label: "epochs", unit: "passes", group: "steps" },
};
const CHOICES = {
  schedule: { label: "step sizes", group: "steps" },
  noise: { label: "noise", group: "shape" },
  sampling: { label: "sampling", group: "shape" },
};

export const fields = new Map();
let form = null;
let changed = null;

export const element = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function toSlider({ low, high }, value) {
  return (1000 * Math.log(value / low)) / Math.log(high / low);
}

function fromSlider({ low, high, integer }, at) {
  const value = low * (high / low) ** (at / 1000);
  const short = Number(value.toPrecision(3));
  return integer ? String(Math.max(1, Math.round(short))) : String(short).replace("e+", "e");
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
  const update = () => {
    const value = Number(input.value);
    if (value > 0) slider.value = toSlider(range, value);
    slider.setAttribute("aria-valuetext", input.value);
  };
  slider.addEventListener("input", () => { input.value = fromSlider(range, Number(slider.value)); update(); changed(); });
  input.addEventListener("input", () => { update(); changed(); });
  box.append(slider, problem);
  fields.get(name).update = update;
  update();
}

function addChoice(name, { label, group }) {
  const select = make("select", {}, ...form.choices[name].map((value) => make("option", { value }, value)));
  select.value = form.defaults[name];
  const { box, problem } = field(name, label, "", select, element(group));
  box.append(problem);
  select.addEventListener("change", () => {
    if (name === "schedule") addParameters(form.parameters[select.value]);
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

export function settings() {
  const given = { parameters: {} };
  for (const [name, { control }] of fields) {
    if (name.startsWith("parameters.")) given.parameters[name.slice(11)] = control.value;
    else given[name] = control.value;
  }
  return given;
}

export function showProblems(problems) {
  for (const [name, { control, problem }] of fields) {
    const message = problems[name] ?? "";
    if (problem.textContent !== message) problem.textContent = message;
    problem.hidden = !message;
    control.setAttribute("aria-invalid", message ? "true" : "false");
  }
  const rest = Object.entries(problems).filter(([name]) => !fields.has(name)).map(([, message]) => message);
  element("general").textContent = rest.join(" ");
  element("general").hidden = !rest.length;
}

// The settings are stored in the address, so that a reload keeps them.

export function store() {
  const { parameters, ...rest } = settings();
  const flat = { ...rest, ...Object.fromEntries(Object.entries(parameters).map(([key, value]) => [`parameters.${key}`, value])) };
  history.replaceState(null, "", `#${new URLSearchParams(flat)}`);
}

function restore() {
  const stored = new URLSearchParams(location.hash.slice(1));
  const schedule = stored.get("schedule");
  if (form.choices.schedule.includes(schedule)) {
    fields.get("schedule").control.value = schedule;
    addParameters(form.parameters[schedule]);
  }
  for (const [name, { control, update }] of fields) {
    if (stored.has(name) && (control.tagName !== "SELECT" || form.choices[name].includes(stored.get(name)))) {
      control.value = stored.get(name);
      update?.();
    }
  }
}

export function addFields(known, onChange) {
  form = known;
  changed = onChange;
  for (const [name, range] of Object.entries(RANGES)) addNumber(name, range);
  for (const [name, choice] of Object.entries(CHOICES)) addChoice(name, choice);
  addParameters(form.parameters[form.defaults.schedule]);
  restore();
}
