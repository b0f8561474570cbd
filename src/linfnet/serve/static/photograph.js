// Pictures of the user: scale large ones down, and show which part of a picture the net sees.
const MAX_SIDE = 1024, MAX_BYTES = 4e6; // larger pictures are scaled down before they are sent
const TYPES = ["image/png", "image/jpeg", "image/webp"]; // the types that the server reads

// Return whether a file can be sent as it is.
export function isReadable(file, picture) {
  return TYPES.includes(file.type) && file.size < MAX_BYTES && Math.max(picture.width, picture.height) <= MAX_SIDE;
}

// Return the picture, scaled down if it is large, as a PNG file.
export function shrink(picture) {
  const scale = Math.min(1, MAX_SIDE / Math.max(picture.width, picture.height)), canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  const brush = canvas.getContext("2d");
  brush.imageSmoothingQuality = "high";
  brush.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

// Paint a picture on the pad; with an aspect ratio, darken what lies outside the largest centred rectangle of this ratio.
export function paintPicture(pad, picture, aspect) {
  pad.clear();
  const size = pad.canvas.width, scale = Math.min(size / picture.width, size / picture.height);
  const [width, height] = [picture.width * scale, picture.height * scale];
  pad.brush.imageSmoothingEnabled = scale < 1;
  pad.brush.imageSmoothingQuality = "high";
  pad.brush.drawImage(picture, (size - width) / 2, (size - height) / 2, width, height);
  if (aspect) {
    const [w, h] = [Math.min(width, height * aspect), Math.min(height, width / aspect)];
    const outside = new Path2D();
    outside.rect((size - width) / 2, (size - height) / 2, width, height);
    outside.rect((size - w) / 2, (size - h) / 2, w, h);
    pad.brush.fillStyle = "rgba(11, 13, 15, .68)";
    pad.brush.fill(outside, "evenodd");
  }
  pad.painted = true;
}
