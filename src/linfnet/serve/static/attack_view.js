// Show the image that the attack found, and the change.
import { floor, showChange, showImage } from "/static/certificate_chart.js";

const $ = (id) => document.getElementById(id);

// `attack` is a response of /api/attack, or null while the attack runs.
export function showPerturbed(prediction, attack, radius) {
  const found = attack?.strongest ?? attack?.broken;
  $("adversarial").style.visibility = found ? "visible" : "hidden";
  $("change").parentElement.style.visibility = found ? "visible" : "hidden";
  $("adversarial-text").textContent = attack ? "No attack succeeded" : "The attack is running …";
  if (!found) return;
  showImage($("adversarial"), found.pixels);
  $("adversarial").setAttribute("aria-label", `The image that the attack found, which the net classifies as ${found.class.name}`);
  const name = document.createElement("b");
  name.textContent = found.class.name;
  const eps = attack.trials[0]?.eps, certified = attack.strongest && radius >= eps;
  const start = attack.broken ? "Adversarial image: “" : certified ? "Certified: still “" : "Not broken: still “";
  const scores = prediction.scores.map((score) => score.logit).sort((a, b) => b - a);
  const rest = attack.broken ? "”" : `”, margin ${floor(Math.max(0, attack.trials[0].margin), 3)} of ${floor(scores[0] - scores[1], 3)}`;
  $("adversarial-text").replaceChildren(start, name, rest);
  showChange($("change"), prediction.pixels, found.pixels, found.distance);
  $("change-text").textContent = found.distance > 0 ? `Change, × ${(0.5 / found.distance).toFixed(1)} (grey: none)` : "No change";
}
