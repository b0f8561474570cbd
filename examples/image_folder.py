"""Train on a folder of PNG files that has a sub-folder for each class, then attack and certify the net."""

import tempfile
from pathlib import Path

from PIL import Image

import linfnet
from linfnet.data import load_path

EPS = "0.1"

with tempfile.TemporaryDirectory() as folder:
    # Your own images would be here already: photos/one/12.png, photos/seven/7.png, …
    photos = Path(folder, "photos")
    digits = linfnet.load("digits")
    for number in range(800):
        pixels, label = digits[number]
        target = photos / f"digit {label}" / f"{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels[0] * 255).byte().numpy()).save(target)

    # The recipe gives the settings; shape, classes, mean and std come from the images. The folder has no `test`
    # folder, so a fifth of each class is the test split.
    settings = {"model.width": 64, "schedule.epochs": [3, 15, 3], "evaluation.eps": [EPS]}
    fitted = linfnet.fit("digits", photos, settings=settings)

    test = load_path(photos, "test")
    result = linfnet.evaluate(fitted.net, test, EPS, steps=20)

print(f"{len(test)} test images of the classes {', '.join(test.class_names)}")
print(f"certified {result.certified:.3f} <= attacked {result.attacked:.3f} <= clean {result.clean:.3f}")
