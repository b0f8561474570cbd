// The drawing pad: strokes by mouse, finger or keyboard, in white on black like the images of MNIST.
const SIZE = 280, WIDTH = 22, STEP = 8, UNDOS = 20;

export class Pad {
  constructor(canvas, pen, changed) {
    this.canvas = canvas;
    this.pen = pen;
    this.changed = changed;
    this.brush = canvas.getContext("2d");
    this.at = null;
    this.key = { x: SIZE / 2, y: SIZE / 2, down: false };
    this.enabled = true;
    this.clear();
    canvas.addEventListener("pointerdown", (event) => this.start(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => this.end());
    canvas.addEventListener("keydown", (event) => this.press(event));
    canvas.addEventListener("blur", () => { pen.hidden = true; });
  }

  // Remember the drawing, so that `undo` can restore it.
  remember() {
    this.before = [...this.before.slice(1 - UNDOS), { image: this.brush.getImageData(0, 0, SIZE, SIZE), empty: this.empty }];
  }

  undo() {
    const last = this.before.pop();
    if (!last) return;
    this.brush.putImageData(last.image, 0, 0);
    this.empty = last.empty;
    this.key.down = false;
    this.pen.classList.remove("down");
    this.changed(true);
  }

  clear() {
    this.before = [];
    this.canvas.width = this.canvas.height = SIZE;
    this.brush.fillStyle = "#000";
    this.brush.fillRect(0, 0, SIZE, SIZE);
    Object.assign(this.brush, { strokeStyle: "#fff", lineWidth: WIDTH, lineCap: "round", lineJoin: "round" });
    this.empty = true;
  }

  line(from, to) {
    this.brush.beginPath();
    this.brush.moveTo(from.x, from.y);
    this.brush.lineTo(to.x, to.y + 0.01);
    this.brush.stroke();
    this.empty = false;
  }

  position(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: ((event.clientX - box.left) * SIZE) / box.width, y: ((event.clientY - box.top) * SIZE) / box.height };
  }

  start(event) {
    if (!this.enabled || event.button > 0) return;
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    this.at = this.position(event);
    this.remember();
    this.line(this.at, this.at);
    this.changed(false);
  }

  move(event) {
    if (!this.at) return;
    for (const part of event.getCoalescedEvents?.() ?? [event]) {
      const next = this.position(part);
      this.line(this.at, next);
      this.at = next;
    }
    this.changed(false);
  }

  end() {
    if (!this.at) return;
    this.at = null;
    this.changed(true);
  }

  press(event) {
    const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const direction = directions[event.key];
    if (this.enabled && event.key === "z" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); return this.undo(); }
    if (!this.enabled || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") { this.clear(); this.key.down = false; this.changed(true); }
    else if (event.key === " ") { this.key.down = !this.key.down; if (this.key.down) { this.remember(); this.line(this.key, this.key); } this.changed(!this.key.down); }
    else if (direction) {
      const clamp = (value) => Math.min(SIZE - WIDTH / 2, Math.max(WIDTH / 2, value));
      const next = { x: clamp(this.key.x + STEP * direction[0]), y: clamp(this.key.y + STEP * direction[1]) };
      if (this.key.down) { this.line(this.key, next); this.changed(false); }
      Object.assign(this.key, next);
    } else return;
    event.preventDefault();
    this.pen.hidden = false;
    this.pen.classList.toggle("down", this.key.down);
    this.pen.style.left = `${(100 * this.key.x) / SIZE}%`;
    this.pen.style.top = `${(100 * this.key.y) / SIZE}%`;
  }

  blob() { return new Promise((resolve) => this.canvas.toBlob(resolve, "image/png")); }
}
