// Charts as SVG: axes with names and units, and lines that differ in colour and in dashes.

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

export function shown(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) {
    return value.toExponential(Math.min(digits - 1, 3)).replace("e+", "e").replace(/\.?0+e/, "e");
  }
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits });
}

function niceStep(range, about) {
  const rough = range / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((k) => k * power).find((step) => step >= rough * 0.999);
}

function linearTicks(low, high, about) {
  const step = niceStep(high - low || 1, about);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k += 1) {
    ticks.push(Number((k * step).toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high, about) {
  const decades = Math.log10(high / low);
  if (decades < 0.8) return linearTicks(low, high, about);
  const every = Math.max(1, Math.ceil(decades / (about + 1)));
  const marks = decades <= 0.4 * about ? [1, 2, 5] : decades <= 0.64 * about ? [1, 3] : [1];
  const ticks = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k += 1) {
    if (k % every) continue;
    for (const mark of marks) ticks.push(Number((mark * 10 ** k).toPrecision(6)));
  }
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

function limits(curves, logarithmic, target) {
  const values = Object.values(curves).flatMap((points) => points.map((point) => point[1]));
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (!logarithmic) return [0, 1.08 * Math.max(high, target ?? 0)];
  if (high / low < 1.5) { low /= 1.25; high *= 1.25; }
  const margin = (high / low) ** 0.05;
  return [low / margin, high * margin];
}

export class Chart {
  constructor(figure, { title, axis, description, logarithmic, height = 250 }) {
    Object.assign(this, { title, axis, description, logarithmic, height });
    const caption = document.createElement("figcaption");
    caption.append(title);
    this.badge = document.createElement("span");
    this.badge.className = "badge";
    caption.append(this.badge);
    this.image = svg("svg", { role: "img", height });
    figure.prepend(caption, this.image);
    this.figure = figure;
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  show(curves, { state, chosen, target = null }) {
    Object.assign(this, { curves, chosen, target });
    this.badge.dataset.state = state;
    this.badge.textContent = state === "exact" ? "exact" : "preview";
    this.figure.dataset.state = state;
    this.draw();
  }

  draw() {
    const width = this.image.clientWidth;
    if (!this.curves || !Object.keys(this.curves).length || width < 50) {
      this.image.replaceChildren();
      return;
    }
    const [low, high] = limits(this.curves, this.logarithmic, this.target);
    const ticks = (this.logarithmic ? logTicks : linearTicks)(low, high, this.height / 50);
    const names = ticks.map((tick) => shown(tick, 3));
    const left = 30 + 7 * Math.max(...names.map((name) => name.length));
    const frame = { left, right: width - 14, top: 12, bottom: this.height - 42 };
    const steps = Math.max(...Object.values(this.curves).map((points) => points.at(-1)[0]), 1);
    const first = Math.min(...Object.values(this.curves).map((points) => points[0][0]));
    const scale = this.logarithmic ? Math.log : (value) => value;
    const x = (t) => frame.left + ((frame.right - frame.left) * (t - first)) / Math.max(steps - first, 1);
    const y = (value) =>
      frame.bottom - ((frame.bottom - frame.top) * (scale(value) - scale(low))) / (scale(high) - scale(low));
    const parts = [svg("title", {}, this.describe())];
    ticks.forEach((tick, index) => {
      parts.push(svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y(tick), y2: y(tick) }));
      parts.push(svg("text", { x: frame.left - 7, y: y(tick) + 4, "text-anchor": "end" }, names[index]));
    });
    for (const tick of linearTicks(first, steps, width < 420 ? 3 : 6)) {
      parts.push(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: frame.top, y2: frame.bottom }));
      const end = x(tick) > frame.right - 18 ? "end" : "middle";
      parts.push(svg("text", { x: Math.min(x(tick), frame.right + 8), y: frame.bottom + 17, "text-anchor": end },
        tick.toLocaleString("en")));
    }
    parts.push(svg("rect", { class: "frame", x: frame.left, y: frame.top,
      width: frame.right - frame.left, height: frame.bottom - frame.top }));
    if (this.target !== null) {
      parts.push(svg("line", { class: "target", x1: frame.left, x2: frame.right, y1: y(this.target), y2: y(this.target) }));
    }
    const order = Object.keys(this.curves).sort((a, b) => (a === this.chosen) - (b === this.chosen));
    for (const name of order) {
      const points = this.curves[name].map(([t, value]) => `${x(t).toFixed(1)},${y(value).toFixed(1)}`);
      if (points.length === 1) points.push(`${frame.right},${points[0].split(",")[1]}`);
      const chosen = name === this.chosen ? " chosen" : "";
      parts.push(svg("polyline", { class: `curve ${name}${chosen}`, "data-noise": name, points: points.join(" ") }));
    }
    const middle = (frame.top + frame.bottom) / 2;
    parts.push(svg("text", { class: "axis-name", x: (frame.left + frame.right) / 2, y: this.height - 5, "text-anchor": "middle" },
      "step t (number of steps)"));
    parts.push(svg("text", { class: "axis-name", x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` },
      this.axis));
    this.image.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.image.replaceChildren(...parts);
  }

  describe() {
    const ends = Object.entries(this.curves).map(
      ([name, points]) => `${name}: ${shown(points[0][1])} at the first step, ${shown(points.at(-1)[1])} at the last`);
    return `${this.description}. ${ends.join("; ")}.`;
  }
}
