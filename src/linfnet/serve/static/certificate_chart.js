// Draw images on canvases, the chart of the margin over ε, and the band around a row of pixels.
const SVG = "http://www.w3.org/2000/svg";

export function floor(value, digits) {
  // A radius is truncated, never rounded up. 0.29 is stored as a slightly smaller number; multiplying it by 10 ** digits would hide this.
  return value.toFixed(40).slice(0, digits - 40);
}

function add(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function blank(svg, height) {
  const width = Math.max(240, svg.getBoundingClientRect().width || 600);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  return width;
}

// Return a length in 255ths, rounded down: the product may be rounded up, the factor makes it too small.
export function levels(value) {
  return `${floor(value * 255 * (1 - 2 ** -52), 1)}/255`;
}

export function showImage(canvas, pixels) {
  const [channels, rows, columns] = [pixels.length, pixels[0].length, pixels[0][0].length];
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let y = 0; y < rows; y++) for (let x = 0; x < columns; x++) for (let c = 0; c < 3; c++) {
    image.data[4 * (y * columns + x) + c] = Math.round(255 * pixels[channels === 3 ? c : 0][y][x]);
    image.data[4 * (y * columns + x) + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

export function showChange(canvas, before, after, largest) {
  // Grey means no change, white the largest increase, and black the largest decrease.
  const scale = largest > 0 ? 0.5 / largest : 0;
  showImage(canvas, before.map((plane, c) => plane.map((row, y) => row.map((v, x) => 0.5 + scale * (after[c][y][x] - v)))));
}

function ticks(end) {
  const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.25].find((size) => end / size <= 6) ?? 0.25;
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, k) => Number((k * step).toFixed(2)));
}

// Draw the zones of ε and the margin: the Lipschitz bound as a line, and the margins that the attack found as dots.
export function drawRuler(svg, { radius, margin, lipschitz, attack }) {
  const top = 26, height = 190, foot = 30, left = 2;
  const width = blank(svg, top + height + foot);
  const broken = attack?.broken?.distance ?? null;
  const last = attack ? (broken === null ? 1 : Math.min(1, Math.max(1.35 * broken, 1.35 * radius, 0.02))) : Math.min(1, Math.max(1.8 * radius, 0.02));
  const x = (eps) => left + (eps / last) * (width - left - 2);
  const zone = (from, to, kind, name) => {
    if (to - from <= 0) return;
    add(svg, "rect", { x: x(from), y: top, width: x(to) - x(from), height, class: `${kind}-area` });
    const room = x(to) - x(from);
    if (room > 7.6 * name.length) add(svg, "text", { x: x(from) + 8, y: top + height - 10, class: `name ${kind}-name` }, name);
  };
  zone(0, radius, "proven", "certified");
  zone(radius, broken ?? last, "open", attack ? "undecided" : "");
  if (broken !== null) zone(broken, last, "broken", "broken");
  const y = (value) => top + height * (1 - Math.max(0, Math.min(1, value / margin)));
  if (margin > 0 && lipschitz) {
    add(svg, "line", { x1: x(0), y1: y(margin), x2: x(Math.min(last, margin / (2 * lipschitz))), y2: y(Math.max(0, margin - 2 * lipschitz * last)), class: "proven-line" });
  }
  if (margin > 0 && attack) {
    let least = margin;
    const points = [[0, margin]];
    for (const trial of attack.trials) if (trial.eps <= last) { least = Math.min(least, trial.margin); points.push([trial.eps, least, trial.broken]); }
    const shown = [];
    for (const point of points) { shown.push(point); if (point[2]) break; }
    add(svg, "path", { d: `M${shown.map(([e, m]) => `${x(e).toFixed(1)},${y(m).toFixed(1)}`).join("L")}`, class: "broken-line" });
    for (const [e, m] of shown.slice(1)) add(svg, "circle", { cx: x(e), cy: y(m), r: 2.6, class: "dot" });
  }
  add(svg, "line", { x1: x(radius), y1: top - 8, x2: x(radius), y2: top + height, class: "mark-proven" });
  if (broken !== null) add(svg, "line", { x1: x(broken), y1: top - 8, x2: x(broken), y2: top + height, class: "mark-broken" });
  const near = broken !== null && x(broken) - x(radius) < 130;
  if (radius > 0) add(svg, "text", { x: x(radius) - (near ? 4 : 0), y: top - 12, "text-anchor": near ? "end" : "middle", class: "name proven-name" }, floor(radius, 4));
  if (broken !== null) add(svg, "text", { x: x(broken) + (near ? 4 : 0), y: top - 12, "text-anchor": near ? "start" : "middle", class: "name broken-name" }, broken.toFixed(4));
  add(svg, "line", { x1: x(0), y1: top + height, x2: x(last), y2: top + height, class: "axis" });
  for (const tick of ticks(last)) {
    const anchor = tick === 0 ? "start" : x(tick) > width - 24 ? "end" : "middle";
    add(svg, "text", { x: x(tick), y: top + height + 18, "text-anchor": anchor }, tick === 0 ? "ε = 0" : String(tick));
  }
}

// Draw one row of pixels and the band of all images that are certified to have the same class; return the number of the row.
export function drawBand(svg, pixels, radius) {
  const top = 8, height = 150, foot = 24, left = 26;
  const width = blank(svg, top + height + foot);
  const plane = pixels[0];
  const contrast = plane.map((row) => Math.max(...row) - Math.min(...row));
  const middle = (plane.length - 1) / 2;
  const best = contrast.reduce((k, value, row) => (value - 0.01 * Math.abs(row - middle) > contrast[k] - 0.01 * Math.abs(k - middle) ? row : k), 0);
  const row = plane[best], size = (width - left - 2) / row.length;
  const y = (value) => top + height * (1 - value);
  for (const value of [0, 0.5, 1]) {
    add(svg, "line", { x1: left, y1: y(value), x2: width, y2: y(value), class: "grid" });
    add(svg, "text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value));
  }
  const steps = (values) => values.map((value, k) => `${left + k * size},${y(value)}L${left + (k + 1) * size},${y(value)}`);
  const upper = steps(row.map((value) => Math.min(1, value + radius)));
  const lower = steps(row.map((value) => Math.max(0, value - radius))).map((part) => part.split("L").reverse().join("L")).reverse();
  add(svg, "path", { d: `M${[...upper, ...lower].join("L")}Z`, class: "proven-area" });
  add(svg, "path", { d: `M${steps(row).join("L")}`, class: "value" });
  add(svg, "text", { x: left, y: top + height + 17 }, `row ${best + 1} of ${plane.length}, left to right`);
  return best + 1;
}
