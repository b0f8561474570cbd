// The shared parts of all charts: numbers, scales, axes, and the cross-hair that follows the pointer and the keys.
const DASHES = ["", "7 4", "3 3", "10 3 3 3", "5 2", "12 5"];
const colourOf = (k) => (k === null || k === undefined ? "var(--soft)" : `var(--c${k % 6})`);
// Exact halves are rounded to the even digit, as in the tables.
const percent = (share) => {
  const value = 100 * share, eighth = (value * 8) % 8;
  return (eighth === 1 || eighth === 5 ? Math.floor(value * 100) / 100 : value).toFixed(2);
};
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function node(name, attributes = {}, parent = null, text = null) {
  const child = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  if (text !== null) child.textContent = text;
  if (parent) parent.appendChild(child);
  return child;
}

function element(name, attributes = {}, parent = null, text = null) {
  const child = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  if (text !== null) child.textContent = text;
  if (parent) parent.appendChild(child);
  return child;
}

// Return the number that a text denotes, and why it is not an epsilon or "". The rules are those of linfnet.epsilon.
function parseEpsilon(text) {
  const plain = text.replaceAll(" ", "");
  const match = /^([+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,2})?)(?:\/(\d{1,40}))?$/.exec(plain);
  const value = match ? Number(match[1]) / Number(match[2] ?? 1) : NaN;
  if (!Number.isFinite(value)) return [NaN, `ε is “${text.trim().slice(0, 50)}”; expected a number like 8/255 or 0.1`];
  if (value >= 0 && value <= 1) return [value, ""];
  const meant = /^\d+$/.test(plain) && value <= 255 ? `; did you mean ${value}/255?` : "";
  return [NaN, `ε is ${plain}; expected a number from 0 to 1 (pixel units)${meant}`];
}

// Decode ascending numbers from base64 of little-endian float64.
function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Float64Array(bytes.buffer);
}

// Return the share of the ascending numbers that are at least `value`.
function reach(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] >= value) high = middle; else low = middle + 1;
  }
  return (sorted.length - low) / sorted.length;
}

function niceSteps(low, high, count) {
  const raw = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(+(k * step).toPrecision(12));
  return ticks;
}

function logSteps(low, high) {
  const ticks = [];
  for (let e = Math.ceil(Math.log10(low) - 1e-9); 10 ** e <= high * 1.0001; e++) ticks.push(10 ** e);
  return ticks.length >= 2 ? ticks : [low, high];
}

// Return the upper end of an axis of shares: the next tenth above the largest share.
const niceTop = (most) => clamp(Math.ceil(most * 10 + 0.2) / 10, 0.1, 1);
const percentTick = (value, top) => (value >= top - 1e-9 ? `${+(100 * value).toFixed(2)} %` : String(+(100 * value).toFixed(2)));

const short = (value) => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 0.001 && size < 1e5 ? String(+value.toPrecision(4)) : value.toExponential(size < 1 ? 0 : 1);
};

// Format lengths in pixel units, in 255ths if `levels` is true.
function lengths(levels) {
  return {
    ticks: (low, high, count) => levels ? niceSteps(low * 255, high * 255, count).map((k) => k / 255) : niceSteps(low, high, count),
    tick: (value) => levels ? (value === 0 ? "0" : `${+(value * 255).toFixed(2)}/255`) : short(value),
    exact: (value) => levels ? `${(value * 255).toFixed(2)}/255` : value.toFixed(4),
  };
}

// A chart that is redrawn when its box changes size, with a cross-hair that follows the pointer and the keys.
class Plot {
  constructor(name, chart) {
    this.name = name;
    this.box = document.getElementById(`${name}-plot`);
    this.readout = document.getElementById(`${name}-readout`);
    this.chart = chart;
    this.at = chart.start;
    this.box.setAttribute("aria-valuemin", chart.low);
    this.box.setAttribute("aria-valuemax", chart.high);
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("pointerdown", (event) => this.point(event));
    this.box.addEventListener("pointerleave", () => this.box === document.activeElement || this.move(chart.start));
    this.box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.box);
    this.draw();
  }

  draw() {
    const width = Math.max(this.box.clientWidth, 200);
    if (width === this.width) return;
    this.width = width;
    this.box.replaceChildren();
    const { height, margin } = this.chart.size(width);
    this.area = { left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" }, this.box);
    const { left, right, top, bottom } = this.area, { low, high } = this.chart;
    this.x = (value) => left + (right - left) * (value - low) / (high - low || 1);
    this.value = (x) => low + (high - low) * (x - left) / (right - left);
    this.chart.draw(svg, this);
    this.cross = node("g", {}, svg);
    this.move(this.at);
  }

  // Return a function that maps values to y coordinates, linearly or logarithmically.
  scale(low, high, log) {
    const { top, bottom } = this.area;
    const position = log ? (v) => Math.log(v / low) / Math.log(high / low) : (v) => (v - low) / (high - low || 1);
    return (value) => bottom - (bottom - top) * position(value);
  }

  point(event) {
    const x = event.clientX - this.box.getBoundingClientRect().left;
    const near = this.chart.stops.map((s) => [Math.abs(this.x(s) - x), s]).sort((a, b) => a[0] - b[0])[0];
    const free = !this.chart.only;
    this.move(near && (!free || near[0] < 5) ? near[1] : clamp(this.value(x), this.chart.low, this.chart.high));
  }

  key(event) {
    const { low, high, stops, only } = this.chart;
    const far = event.key.startsWith("Page") ? 10 : 1;
    const direction = { ArrowRight: 1, ArrowUp: 1, PageUp: 1, ArrowLeft: -1, ArrowDown: -1, PageDown: -1 }[event.key];
    let to = { Home: only ? stops[0] : low, End: only ? stops[stops.length - 1] : high }[event.key];
    if (direction) {
      const grid = only ? stops : [...stops, ...Array.from({ length: 201 }, (_, k) => low + (high - low) * k / 200)].sort((a, b) => a - b);
      const ahead = grid.filter((s) => direction > 0 ? s > this.at : s < this.at);
      to = ahead.length ? (direction > 0 ? ahead[Math.min(far, ahead.length) - 1] : ahead[Math.max(ahead.length - far, 0)]) : this.at;
    }
    if (to === undefined) return;
    event.preventDefault();
    this.move(to);
  }

  move(value) {
    this.at = value;
    // A typed value may be beyond the end of the axis; it is read there, and marked at the end.
    const { top, bottom } = this.area, inside = clamp(value, this.chart.low, this.chart.high), x = this.x(inside);
    this.cross.replaceChildren();
    node("line", { class: "cross", x1: x, x2: x, y1: top, y2: bottom }, this.cross);
    const reading = this.chart.read(value, this);
    for (const dot of reading.dots || [])
      node("circle", { cx: this.x(dot.x ?? inside), cy: dot.y, r: 4, style: `fill:${dot.colour};stroke:var(--paper);stroke-width:1.5` }, this.cross);
    this.readout.replaceChildren();
    const words = [];
    for (const line of reading.lines) {
      const row = reading.lines.length > 1 ? element("span", { class: "line" }, this.readout) : this.readout;
      for (const item of line) {
        const part = element("span", item.colour === undefined ? { class: "at" } : { class: "item" }, row);
        if (item.colour !== undefined) part.style.color = item.colour;
        part.append(`${item.name} `);
        const figure = element("b", item.key ? { "data-key": item.key } : {}, part, item.text);
        if (item.value !== undefined) figure.dataset.value = item.value;
        words.push(`${item.name} ${item.text}`);
      }
    }
    this.box.setAttribute("aria-valuenow", +inside.toPrecision(6));
    this.box.setAttribute("aria-valuetext", words.join(", "));
  }
}

function yAxis(svg, plot, ticks, y, text) {
  const { left, right } = plot.area;
  for (const tick of ticks) {
    node("line", { class: "grid", x1: left, x2: right, y1: Math.round(y(tick)) + 0.5, y2: Math.round(y(tick)) + 0.5 }, svg);
    node("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, svg, text(tick));
  }
}

function xAxis(svg, plot, ticks, text, title) {
  const { left, right, bottom } = plot.area;
  node("line", { class: "axis", x1: left, x2: right, y1: bottom + 0.5, y2: bottom + 0.5 }, svg);
  for (const tick of ticks) {
    node("line", { class: "axis", x1: plot.x(tick), x2: plot.x(tick), y1: bottom, y2: bottom + 5 }, svg);
    node("text", { x: plot.x(tick), y: bottom + 20, "text-anchor": "middle" }, svg, text(tick));
  }
  if (title) node("text", { x: right, y: bottom + 38, "text-anchor": "end" }, svg, title);
}

function path(points) {
  return points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}
