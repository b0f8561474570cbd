// Draw or drop, ask the server, show what it says. Nothing is kept.
import { Pad } from "/static/pad.js";
import { drawBand, drawRuler, floor, showChange, showImage } from "/static/figures.js";

const $ = (id) => document.getElementById(id);
const LARGEST = 1024; // pixels a side: larger pictures are made smaller before they are sent
let model, prediction, attack, asking = null, again = null, attacking = null, timer = 0, cleared = 0;

async function ask(path, options) {
  const answer = await fetch(path, options);
  const body = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(body.error);
  return body;
}

function tell(error) {
  $("error").hidden = !error;
  $("error").textContent = error ?? "";
}

function levels(radius) {
  const steps = radius * 255;
  return steps >= 1 ? `${floor(steps, 1)} of 255 grey levels, in every pixel at once` : "less than one grey level of 255";
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
  $("levels").textContent = prediction.radius === null ? "two classes tie: nothing is proven" : levels(radius);
  showImage($("seen"), prediction.pixels);
  showAttack(radius);
  const scores = [...prediction.scores].sort((a, b) => b.logit - a.logit);
  drawRuler($("ruler"), { radius, margin: scores[0].logit - scores[1].logit, lipschitz: model.lipschitz, attack });
  drawBand($("band"), prediction.pixels, radius);
  const sure = model.confidence < 1 ? `, right with probability ${model.confidence}` : "";
  const of = (model.arithmetic === "float32" ? "the program itself, rounding included" : "the exact net, rounding aside") + sure;
  $("band-text").replaceChildren(
    `The line is one row of your image; the band is ±${floor(radius, 4)} around it. Every image inside the band, in all rows at once, `,
    `is a “${prediction.class.name}” to this net: a proof about ${of}.`);
  showScores(scores);
}

function showAttack(radius) {
  const broken = attack?.broken, name = prediction.class.name;
  const big = $("distance");
  big.classList.toggle("waiting", !attack);
  word(big, !attack ? "…" : broken ? broken.distance.toFixed(4) : "never");
  $("verdict").textContent = !attack ? "the attack is running" : broken ? `by an attack, to “${broken.class.name}”` : attack.complete ? "not up to ε = 1" : "not in the time it had";
  const gap = broken ? broken.distance - radius : 0;
  $("ruler-text").textContent = !attack
    ? "The broad line is the proof: as every pixel may change by ε, the margin between the first two classes cannot fall below it."
    : (model.lipschitz ? "The broad line is the proof: the margin between the first two classes cannot fall below it. " : "") + "Dots: how low the attack got it. " + (broken
      ? `Up to ${floor(radius, 4)} nothing can break “${name}”; at ${broken.distance.toFixed(4)} the attack did. Between them, ${gap < 0.0005 ? "next to nothing is" : `a gap of ${gap.toFixed(4)} is`} left open.`
      : "It never reached zero.") + (attack.complete ? "" : " The attack ran out of time: a longer one may get closer.");
  for (const id of ["moved", "change"]) $(id).parentElement.style.visibility = broken ? "visible" : "hidden";
  if (!broken) return;
  showImage($("moved"), broken.pixels);
  $("moved").setAttribute("aria-label", `The adversarial image, which the net takes for ${broken.class.name}`);
  const bold = document.createElement("b");
  bold.textContent = broken.class.name;
  $("moved-text").replaceChildren("The attack’s: “", bold, "” to the net");
  showChange($("change"), prediction.pixels, broken.pixels, broken.distance);
  $("change-text").textContent = `The change, × ${(0.5 / broken.distance).toFixed(1)}, grey is none`;
}

function showScores(scores) {
  const low = scores.at(-1).logit, span = scores[0].logit - low || 1;
  $("scores").tBodies[0].replaceChildren(...scores.slice(0, 10).map((score, k) => {
    const row = document.createElement("tr"), head = document.createElement("th"), meter = document.createElement("meter");
    head.scope = "row";
    head.textContent = score.name;
    meter.value = (score.logit - low) / span;
    meter.setAttribute("aria-label", `score of ${score.name}`);
    const cells = [meter, score.logit.toFixed(3).replace("-", "−"), k === 0 ? "it wins" : score.earliest_eps === null ? "–" : floor(score.earliest_eps, 4)];
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

// One question at a time; the newest image is asked next.
async function predict(body, type, fit, finished) {
  if (asking) { again = [body, type, fit, finished]; return; }
  asking = true;
  attacking?.abort();
  clearTimeout(timer);
  const round = cleared;
  try {
    const answer = await ask(`/api/predict?fit=${fit}`, { method: "POST", body, headers: { "Content-Type": type } });
    if (round === cleared) {
      [prediction, attack] = [answer, null];
      tell(null);
      show();
    }
  } catch (error) {
    if (finished && round === cleared) tell(error.message);
  }
  asking = null;
  if (again) { const next = again; again = null; predict(...next); }
  else if (finished && prediction && round === cleared) timer = setTimeout(startAttack, 150);
}

async function startAttack() {
  attacking?.abort();
  const mine = (attacking = new AbortController());
  const body = JSON.stringify({ pixels: prediction.pixels });
  for (let tries = 0; tries < 20 && !mine.signal.aborted; tries++) {
    try {
      attack = await ask("/api/attack", { method: "POST", body, headers: { "Content-Type": "application/json" }, signal: mine.signal });
      return show();
    } catch (error) {
      if (mine.signal.aborted) return;
      if (!/too many requests/.test(error.message)) return tell(error.message);
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
}

function reset() {
  cleared++; // answers to older questions come too late
  attacking?.abort();
  clearTimeout(timer);
  prediction = attack = again = null;
  $("hint").hidden = false;
  tell(null);
  show();
}

async function drop(file) {
  if (!file) return;
  try {
    const picture = await createImageBitmap(file).catch(() => { throw new Error(`${file.name || "the file"} is not a picture the browser can read`); });
    const [channels, rows, columns] = model.image_shape;
    let body = file, fit = picture.width === columns && picture.height === rows ? "none" : model.fit;
    if (picture.width > LARGEST || picture.height > LARGEST || !["image/png", "image/jpeg"].includes(file.type)) body = await shrink(picture);
    pad.clear();
    $("hint").hidden = true;
    paint(picture);
    await predict(body, body.type, fit, true).catch(() => {});
    // A picture of the right size in another mode, say a grey one with colours stored: fit it after all.
    if (fit === "none" && !$("error").hidden && /mode/.test($("error").textContent)) await predict(body, body.type, channels === 3 ? "whole" : model.fit, true);
  } catch (error) { tell(error.message); }
}

function shrink(picture) {
  const scale = Math.min(1, LARGEST / Math.max(picture.width, picture.height)), canvas = document.createElement("canvas");
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

let last = 0;
const pad = new Pad($("pad"), $("pen"), async (finished) => {
  $("hint").hidden = !pad.empty;
  if (pad.empty) return reset();
  attacking?.abort();
  clearTimeout(timer);
  if (!finished && performance.now() - last < 120) return;
  last = performance.now();
  predict(await pad.blob(), "image/png", model.fit, finished);
});

$("pad").addEventListener("pointerdown", () => { if (pad.painted) { pad.clear(); pad.painted = false; } }, { capture: true });
$("clear").addEventListener("click", () => { pad.clear(); pad.painted = false; reset(); });
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

model = await ask("/api/model").catch((error) => { tell(error.message); throw error; });
const [channels, rows, columns] = model.image_shape, drawn = channels === 1;
pad.enabled = drawn;
$("slate").classList.toggle("still", !drawn);
$("pad").tabIndex = drawn ? 0 : -1;
if (!drawn) $("pad").setAttribute("aria-label", "The chosen image");
document.title = `${model.name} · linfnet`;
$("model").textContent = model.name;
$("title").textContent = model.fit === "digit" ? "Draw a digit, get a proof" : drawn ? "Draw or drop an image, get a proof" : "Drop an image, get a proof";
$("hint").textContent = model.fit === "digit" ? "Draw a digit here" : drawn ? "Draw or drop an image" : "Drop an image here";
$("keys").textContent = drawn ? "or drop or paste one. Keyboard: arrows move the pen, space lowers it." : "or paste one";
$("about").textContent = `${model.parameters.toLocaleString("en")} parameters, ${columns} × ${rows} ${channels === 1 ? "grey" : "colour"} pixels, ${model.class_names.length} classes` +
  (model.lipschitz ? `; no logit can change by more than ${model.lipschitz.toFixed(2)} ε when every pixel changes by up to ε.` : ".");
document.documentElement.dataset.ready = "yes";
