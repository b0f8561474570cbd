// Send a drawing or a picture to the server and show the response; nothing is stored.
import { Pad } from "/static/pad.js";
import { SIDE, offerSamples, offerTestImages } from "/static/samples.js";
import { showPerturbed } from "/static/attack_view.js";
import { drawBand, drawRuler, floor, levels, showImage } from "/static/certificate_chart.js";
import { isReadable, paintPicture, shrink } from "/static/photograph.js";

const $ = (id) => document.getElementById(id);
let model, prediction, attack, within, photograph, predicting = false, queued = null, attacking = null, timer = 0, cleared = 0;

async function request(path, options) {
  const response = await fetch(path, options);
  const body = await response.json().catch(() => ({ error: `the server responded with status ${response.status}` }));
  if (!response.ok) throw Object.assign(new Error(body.error), { status: response.status });
  return body;
}

function showError(error) {
  $("error").hidden = !error;
  $("error").textContent = error ?? "";
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
  $("levels").textContent = prediction.radius === null ? "two classes have equal scores: nothing is certified" : `${levels(radius)}, for all pixels at once`;
  $("guarantee").textContent = prediction.radius === null ? "" : prediction.guarantee;
  showImage($("input-image"), prediction.pixels);
  showAttack(radius);
  const scores = [...prediction.scores].sort((a, b) => b.logit - a.logit);
  drawRuler($("ruler"), { radius, margin: scores[0].logit - scores[1].logit, lipschitz: model.lipschitz, attack });
  drawBand($("band"), prediction.pixels, radius);
  $("band-text").replaceChildren(
    `The line shows ${model.image_shape[0] === 3 ? "the red values of " : ""}one row of your image; the band is ±${floor(radius, 4)} around it. The net classifies every image inside the band, `,
    `in all rows at once, as “${prediction.class.name}” (${prediction.guarantee}).`);
  showScores(scores);
}

function showAttack(radius) {
  const broken = attack?.broken, name = prediction.class.name;
  const big = $("distance");
  big.classList.toggle("waiting", !attack);
  word(big, !attack ? "…" : broken ? broken.distance.toFixed(4) : "never");
  $("verdict").textContent = !attack ? "the attack is running" : broken ? `${(broken.distance * 255).toFixed(1)}/255: the attack changed the class to “${broken.class.name}”` : attack.complete ? "no attack succeeded up to ε = 1" : "no attack succeeded within the time limit";
  $("ruler-text").textContent = !attack
    ? "The thick line is a lower bound from the Lipschitz constant: when every pixel changes by up to ε, the margin between the two best classes cannot fall below the line."
    : (model.lipschitz ? "The thick line is a lower bound from the Lipschitz constant: the margin between the two best classes cannot fall below the line. " : "") + "The dots show the smallest margin that the attack found. " + (broken
      ? `No change of up to ${floor(radius, 4)} per pixel can alter the class “${name}”; at ${broken.distance.toFixed(4)} the attack succeeded. Between the two, nothing is known.`
      : "The margin never reached zero.") + (attack.complete ? "" : " The attack ran out of time; a longer attack might find a smaller change.");
  showPerturbed(prediction, chosen("view") === "within" ? within : attack, radius);
}

// Return the value of the selected radio button of a group.
function chosen(name) {
  return document.querySelector(`input[name="${name}"]:checked`).value;
}

function showScores(scores) {
  const low = scores.at(-1).logit, span = scores[0].logit - low || 1;
  $("scores").tBodies[0].replaceChildren(...scores.slice(0, 10).map((score, k) => {
    const row = document.createElement("tr"), head = document.createElement("th"), meter = document.createElement("meter");
    head.scope = "row";
    head.textContent = score.name;
    meter.value = (score.logit - low) / span;
    meter.setAttribute("aria-label", `score of ${score.name}`);
    const cells = [meter, score.logit.toFixed(3).replace("-", "−")];
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
      [prediction, attack, within] = [answer, null, null];
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

// Run the attacks that the page shows and that are still missing: the search for the closest image, and the attack within ε.
async function startAttack() {
  attacking?.abort();
  attacking = new AbortController();
  const mine = attacking;
  if (chosen("view") === "within" && !within) within = await runAttack(mine, { eps: Math.min(1, Number($("eps").value) / 255) });
  if (!mine.signal.aborted && prediction) show();
  if (!attack && !mine.signal.aborted) attack = await runAttack(mine, {});
  if (!mine.signal.aborted && prediction) show();
}

async function runAttack(mine, options) {
  const body = JSON.stringify({ pixels: prediction.pixels, ...options });
  for (let tries = 0; tries < 60 && !mine.signal.aborted; tries++) {
    try {
      return await request("/api/attack", { method: "POST", body, headers: { "Content-Type": "application/json" }, signal: mine.signal });
    } catch (error) {
      if (mine.signal.aborted) break;
      if (![429, 503].includes(error.status)) { showError(error.message); break; }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
  return null;
}

function reset() {
  $("undo").disabled = true;
  cleared++; // responses to older requests are ignored
  attacking?.abort();
  clearTimeout(timer);
  prediction = attack = within = photograph = queued = null;
  $("hint").hidden = false;
  showSource(null);
  showError(null);
  show();
}

function showSource(text) {
  $("source").hidden = !text;
  $("source").textContent = text ?? "";
}

async function drop(file, source = null) {
  if (!file) return;
  try {
    const picture = await createImageBitmap(file).catch(() => { throw new Error(`${file.name || "the file"} is not a picture that the browser can read`); });
    const body = isReadable(file, picture) ? file : await shrink(picture);
    pad.clear();
    reset();
    $("hint").hidden = true;
    photograph = { picture, body };
    showSource(source);
    await sendPhotograph();
  } catch (error) { showError(error.message); }
}

async function sendPhotograph() {
  const [, rows, columns] = model.image_shape, { picture, body } = photograph;
  const fit = model.fit === "digit" ? "digit" : chosen("fit"), exact = picture.width === columns && picture.height === rows;
  paintPicture(pad, picture, fit === "crop" ? columns / rows : null);
  await predict(body, body.type, exact ? "none" : fit, true);
  // If the size is right but the mode is not, as for a grey picture stored in colour, fit the picture.
  if (exact && !$("error").hidden && /mode/.test($("error").textContent)) await predict(body, body.type, fit, true);
}

// Digits of the net's size are sent as they are; others are prepared by the server like a drawing.
async function choose(canvas, pixels) {
  pad.clear();
  reset();
  $("hint").hidden = true;
  paintPicture(pad, canvas, null);
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

$("pad").addEventListener("pointerdown", () => { if (pad.painted && pad.enabled) { pad.clear(); pad.painted = false; } }, { capture: true });
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
$("fit").addEventListener("change", () => photograph && sendPhotograph());
$("view").addEventListener("change", (event) => {
  if (event.target.id === "eps") { within = null; document.querySelector('input[value="within"]').checked = true; }
  if (!prediction || !$("eps").reportValidity()) return;
  show();
  startAttack();
});
document.addEventListener("paste", (event) => drop(event.clipboardData.files[0]));
addEventListener("resize", () => prediction && show());

model = await request("/api/model").catch((error) => { showError(error.message); throw error; });
const [channels, rows, columns] = model.image_shape, drawable = channels === 1;
const digits = model.fit === "digit";
pad.enabled = drawable;
$("slate").classList.toggle("still", !drawable);
$("pad").tabIndex = drawable ? 0 : -1;
if (!drawable) {
  $("pad").setAttribute("aria-label", "The chosen image");
  $("pad").addEventListener("click", () => $("file").click());
}
$("undo").hidden = !drawable;
$("fit").hidden = digits;
$("eps").value = drawable ? 25.5 : 8;
$("samples").hidden = !digits && !model.samples.length;
if (digits) offerSamples($("samples"), choose);
else offerTestImages($("samples"), model.samples, (file, name) => drop(file, `Test image of the data set, labelled “${name}”.`));
document.title = `${model.name} · linfnet`;
$("model").textContent = model.name;
$("title").textContent = digits ? "Draw a digit, get a certified class" : drawable ? "Draw or drop an image, get a certified class" : "Drop a photograph, get a certified class";
$("hint").textContent = digits ? "Draw a digit here" : drawable ? "Draw or drop an image" : "Drop a photograph here, or click to choose one";
$("keys").textContent = drawable ? "You can also drop or paste an image. Keyboard: the arrow keys move the pen; space lowers or lifts it." : "You can also paste a picture. Large pictures are scaled down before they are sent.";
$("about").textContent = `${model.parameters.toLocaleString("en")} parameters, ${columns} × ${rows} ${channels === 1 ? "grey" : "colour"} pixels, ${model.class_names.length} classes` +
  (model.lipschitz ? `; no logit changes by more than ${model.lipschitz.toFixed(2)} ε when every pixel changes by up to ε.` : ".");
document.documentElement.dataset.ready = "yes";
