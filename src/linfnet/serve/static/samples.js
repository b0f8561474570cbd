// Ten hand-written digits of 8 × 8 pixels, one of each class, from the test images of the data set `digits`
// (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998, CC BY 4.0). Each character is a grey level, 0 to f.
export const SIDE = 8;
const DIGITS = [
  "028ffa000bfa4f100cd00d500bd00f7008f00f6006f15f2002f6fc00007fe100",
  "000c7000000ef000000ef100000ff200000df100000ef100000ef1000006f200",
  "02dffa002fc7af000310cd000003f400000d9000006f300000fa688102fffcc1",
  "01cff90002e59e000001cb00000cf60000028f5000200b9004e44e6000fffb10",
  "0001b700000bf500009ff70005f3f4000ad9fe8003fffd600000f3000000e200",
  "02ffff4004f6871004f7200004fff6000054af0000001e6002e44f8003dfff10",
  "002f8000008f500002f7000003f7510007ffff3005fc4ae000ed5af0003dff70",
  "00cffff0003428f000024bb0006fffc00056f720000ad000004f200000eb0000",
  "01fe200006e0032002f32d3000bef900007fb00000fde00002f4f30001ffc100",
  "002a700000efff1004f73f7005fa7f40005eef4000000f2000477f20005cfc00",
];

// Return a canvas with one of the digits.
function draw(levels) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIDE;
  const brush = canvas.getContext("2d"), image = brush.createImageData(SIDE, SIDE);
  [...levels].forEach((level, k) => image.data.set([...Array(3).fill(17 * parseInt(level, 16)), 255], 4 * k));
  brush.putImageData(image, 0, 0);
  return canvas;
}

// Fill a box with a button for each test image of the data set; `chosen` is called with the PNG file and the name of its class.
export function offerTestImages(box, samples, chosen) {
  box.append(...samples.map(({ url, label }) => {
    const button = document.createElement("button"), image = document.createElement("img");
    button.type = "button";
    button.title = label.name;
    button.setAttribute("aria-label", `Test image: ${label.name}`);
    image.src = url;
    image.alt = "";
    button.append(image);
    button.addEventListener("click", async () => chosen(await (await fetch(url)).blob(), label.name));
    return button;
  }));
}

// Fill a box with a button for each digit; `chosen` is called with the canvas and the pixels [1][8][8] in [0, 1].
export function offerSamples(box, chosen) {
  box.append(...DIGITS.map((levels, digit) => {
    const button = document.createElement("button"), canvas = draw(levels);
    const rows = Array.from({ length: SIDE }, (_, row) => [...levels.slice(SIDE * row, SIDE * row + SIDE)].map((level) => parseInt(level, 16) / 15));
    button.type = "button";
    button.setAttribute("aria-label", `Sample digit ${digit}`);
    button.append(canvas);
    button.addEventListener("click", () => chosen(canvas, [rows]));
    return button;
  }));
}
