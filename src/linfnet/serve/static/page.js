// Send a drawing or a picture to the server and show the response; nothing is stored.
import { Pad } from "/static/pad.js";
import { SIDE, offerSamples } from "/static/samples.js";
import { drawBand, drawRuler, floor, showChange, showImage } from "/static/certificate_chart.js";

const $ = (id) => document.getElementById(id);
const MAX_SIDE = 1024; // in pixels; larger pictures are scaled down before they are sent
let model, prediction, attack, predicting = false, queued = null, attacking = null, timer = 0, cleared = 0;

async function request(path, options) {
  const response = await fetch(path, options);
  const body = await response.json().catch(() => ({ error: `the server responded with status ${response.status}` }));
  if (!response.ok) throw new Error(body.error);
  return body;
}

function showError(error) {
  $("error").hidden = !error;
  $("error").textContent = error ?? "";
}

function levels(radius) {
  const steps = radius * 255;
  return steps >= 1 ? `${floor(steps, 1)} of 255 grey levels, in every pixel at once` : "less than one grey level (1/255)";
}

function word(node, text) {
  node.textContent = text;
  node.classList.toggle("word", text.length > 7);
}

function show() {
  $("empty").hidden = Boolean(prediction);
  $("answer").hidden = !prediction;
  if (!prediction) return;
  const radius = prediction.radius ?? 0;
  word($("class"), prediction.class.name);
  $("second").textContent = prediction.runner_up.name;
  $("radius").textContent = prediction.radius === null ? "none" : floor(radius, 4);
  $("levels").textContent = prediction.radius === null ? "two classes have equal scores: nothing is certified" : levels(radius);
  showImage($("input-image"), prediction.pixels);
  showAttack(radius);
  const scores = [...prediction.scores].sort((a, b) => b.logit - a.logit);
  drawRuler($("ruler"), { radius, margin: scores[0].logit - scores[1].logit, lipschitz: model.lipschitz, attack });
  drawBand($("band"), prediction.pixels, radius);
  const confidence = model.confidence < 1 ? `, correct with probability ${model.confidence}` : "";
  const scope = (model.arithmetic === "float32" ? "the computed outputs, including rounding" : "exact arithmetic, ignoring rounding") + confidence;
  $("band-text").replaceChildren(
    `The line is one row of your image; the band is ±${floor(radius, 4)} around it. The net classifies every image inside the band, `,
    `in all rows at once, as “${prediction.class.name}”. The certificate holds for ${scope}.`);
  showScores(scores);
}

function showAttack(radius) {
  const broken = attack?.broken, name = prediction.class.name;
  const big = $("distance");
  big.classList.toggle("waiting", !attack);
  word(big, !attack ? "…" : broken ? broken.distance.toFixed(4) : "never");
  $("verdict").textContent = !attack ? "the attack is running" : broken ? `the attack changed the class to “${broken.class.name}”` : attack.complete ? "no attack succeeded up to ε = 1" : "no attack succeeded within the time limit";
  $("ruler-text").textContent = !attack
    ? "The thick line is a lower bound from the Lipschitz constant: when every pixel changes by up to ε, the margin between the two best classes cannot fall below the line."
    : (model.lipschitz ? "The thick line is a lower bound from the Lipschitz constant: the margin between the two best classes cannot fall below the line. " : "") + "The dots show the smallest margin that the attack found. " + (broken
      ? `No change of up to ${floor(radius, 4)} per pixel can alter the class “${name}”; at ${broken.distance.toFixed(4)} the attack succeeded. Between the two, nothing is known.`
      : "The margin never reached zero.") + (attack.complete ? "" : " The attack ran out of time; a longer attack might find a smaller change.");
  for (const id of ["adversarial", "change"]) $(id).parentElement.style.visibility = broken ? "visible" : "hidden";
  if (!broken) return;
  showImage($("adversarial"), broken.pixels);
  $("adversarial").setAttribute("aria-label", `The adversarial image, which the net classifies as ${broken.class.name}`);
  const bold = document.createElement("b");
  bold.textContent = broken.class.name;
  $("adversarial-text").replaceChildren("Adversarial image: “", bold, "”");
  showChange($("change"), prediction.pixels, broken.pixels, broken.distance);
  $("change-text").textContent = `Change, × ${(0.5 / broken.distance).toFixed(1)} (grey: none)`;
}

function showScores(scores) {
  const low = scores.at(-1).logit, span = scores[0].logit - low || 1;
  $("scores").tBodies[0].replaceChildren(...scores.slice(0, 10).map((score, k) => {
    const row = document.createElement("tr"), head = document.createElement("th"), meter = document.createElement("meter");
    head.scope = "row";
    head.textContent = score.name;
    meter.value = (score.logit - low) / span;
    meter.setAttribute("aria-label", `score of ${score.name}`);
    const cells = [meter, score.logit.toFixed(3).replace("-", "−"), k === 0 ? "predicted" : score.earliest_eps === null ? "–" : floor(score.earliest_eps, 4)];
    row.append(head, ...cells.map((content, c) => {
      const cell = document.createElement("td");
      if (c) cell.className = "number";
      cell.append(content);
      return cell;
    }));
    if (k === 0) row.className = "first";
    return row;
  }));
}

// Only one prediction runs at a time; the newest image is next.
async function predict(body, type, fit, finished) {
  if (predicting) { queued = [body, type, fit, finished]; return; }
  predicting = true;
  attacking?.abort();
  clearTimeout(timer);
  const round = cleared;
  try {
    const answer = await request(`/api/predict?fit=${fit}`, { method: "POST", body, headers: { "Content-Type": type } });
    if (round === cleared) {
      [prediction, attack] = [answer, null];
      showError(null);
      show();
    }
  } catch (error) {
    if (finished && round === cleared) showError(error.message);
  }
  predicting = false;
  if (queued) { const next = queued; queued = null; predict(...next); }
  else if (finished && prediction && round === cleared) timer = setTimeout(startAttack, 150);
}

async function startAttack() {
  attacking?.abort();
  const mine = (attacking = new AbortController());
  const body = JSON.stringify({ pixels: prediction.pixels });
  for (let tries = 0; tries < 20 && !mine.signal.aborted; tries++) {
    try {
      attack = await request("/api/attack", { method: "POST", body, headers: { "Content-Type": "application/json" }, signal: mine.signal });
      return show();
    } catch (error) {
      if (mine.signal.aborted) return;
      if (!/too many requests/.test(error.message)) return showError(error.message);
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
}

function reset() {
  $("undo").disabled = true;
  cleared++; // responses to older requests are ignored
  attacking?.abort();
  clearTimeout(timer);
  prediction = attack = queued = null;
  $("hint").hidden = false;
  showError(null);
  show();
}

async function drop(file) {
  if (!file) return;
  try {
    const picture = await createImageBitmap(file).catch(() => { throw new Error(`${file.name || "the file"} is not a picture that the browser can read`); });
    const [channels, rows, columns] = model.image_shape;
    let body = file, fit = picture.width === columns && picture.height === rows ? "none" : model.fit;
    if (picture.width > MAX_SIDE || picture.height > MAX_SIDE || !["image/png", "image/jpeg"].includes(file.type)) body = await shrink(picture);
    pad.clear();
    $("undo").disabled = true;
    $("hint").hidden = true;
    paint(picture);
    await predict(body, body.type, fit, true).catch(() => {});
    // If the size is right but the mode is not, as for a grey picture stored in colour, fit the picture.
    if (fit === "none" && !$("error").hidden && /mode/.test($("error").textContent)) await predict(body, body.type, channels === 3 ? "whole" : model.fit, true);
  } catch (error) { showError(error.message); }
}

function shrink(picture) {
  const scale = Math.min(1, MAX_SIDE / Math.max(picture.width, picture.height)), canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function paint(picture) {
  const size = pad.canvas.width, scale = Math.min(size / picture.width, size / picture.height);
  pad.brush.imageSmoothingEnabled = scale < 1;
  pad.brush.drawImage(picture, (size - picture.width * scale) / 2, (size - picture.height * scale) / 2, picture.width * scale, picture.height * scale);
  pad.painted = true;
}

// Digits of the net's size are sent as they are; others are prepared by the server like a drawing.
async function choose(canvas, pixels) {
  pad.clear();
  reset();
  $("hint").hidden = true;
  paint(canvas);
  const [, rows, columns] = model.image_shape;
  if (rows === SIDE && columns === SIDE) return predict(JSON.stringify({ pixels }), "application/json", "none", true);
  predict(await shrink(canvas), "image/png", model.fit, true);
}

let last = 0;
const pad = new Pad($("pad"), $("pen"), async (finished) => {
  $("hint").hidden = !pad.empty;
  $("undo").disabled = !pad.before.length;
  if (pad.empty) return reset();
  attacking?.abort();
  clearTimeout(timer);
  if (!finished && performance.now() - last < 120) return;
  last = performance.now();
  predict(await pad.blob(), "image/png", model.fit, finished);
});

$("pad").addEventListener("pointerdown", () => { if (pad.painted) { pad.clear(); pad.painted = false; } }, { capture: true });
$("clear").addEventListener("click", () => { pad.clear(); pad.painted = false; reset(); });
$("undo").addEventListener("click", () => pad.undo());
$("file").addEventListener("change", (event) => { drop(event.target.files[0]); event.target.value = ""; });
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    $("slate").classList.toggle("over", name === "dragover");
    if (name === "drop") drop(event.dataTransfer.files[0]);
  });
}
document.addEventListener("paste", (event) => drop(event.clipboardData.files[0]));
addEventListener("resize", () => prediction && show());

model = await request("/api/model").catch((error) => { showError(error.message); throw error; });
const [channels, rows, columns] = model.image_shape, drawable = channels === 1;
pad.enabled = drawable;
$("slate").classList.toggle("still", !drawable);
$("pad").tabIndex = drawable ? 0 : -1;
if (!drawable) $("pad").setAttribute("aria-label", "The chosen image");
$("undo").hidden = !drawable;
$("samples").hidden = model.fit !== "digit";
if (model.fit === "digit") offerSamples($("samples"), choose);
document.title = `${model.name} · linfnet`;
$("model").textContent = model.name;
$("title").textContent = model.fit === "digit" ? "Draw a digit, get a certified class" : drawable ? "Draw or drop an image, get a certified class" : "Drop an image, get a certified class";
$("hint").textContent = model.fit === "digit" ? "Draw a digit here" : drawable ? "Draw or drop an image" : "Drop an image here";
$("keys").textContent = drawable ? "You can also drop or paste an image. Keyboard: the arrow keys move the pen; space lowers or lifts it." : "You can also drop or paste an image.";
$("about").textContent = `${model.parameters.toLocaleString("en")} parameters, ${columns} × ${rows} ${channels === 1 ? "grey" : "colour"} pixels, ${model.class_names.length} classes` +
  (model.lipschitz ? `; no logit changes by more than ${model.lipschitz.toFixed(2)} ε when every pixel changes by up to ε.` : ".");
document.documentElement.dataset.ready = "yes";
