"""Train on a data set of the Hugging Face hub. A small class stands in for it here, so that nothing is downloaded."""

from types import SimpleNamespace

from PIL import Image

import linfnet
from linfnet.train import TrainingRun

EPS = "0.1"


class Rows:
    """Behaves like `datasets.load_dataset("user/name", split="train")`: rows with an image and a label."""

    def __init__(self, split: str, count: int) -> None:
        self.digits = linfnet.load("digits", split).first(count)
        names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
        self.features = {"image": None, "label": SimpleNamespace(names=names)}

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> dict[str, object]:
        pixels, label = self.digits[index]
        return {"image": Image.fromarray((pixels[0] * 255).byte().numpy()), "label": label}


train, test = Rows("train", 800), Rows("test", 200)


def report(run: TrainingRun) -> None:
    if run.epoch % 7 == 0:
        print(f"epoch {run.epoch}/{run.epochs}: p = {run.p:.3g}, loss {run.metrics['loss']:.3f}")


settings = {"model.width": 64, "schedule.epochs": [3, 15, 3], "evaluation.eps": [EPS]}
fitted = linfnet.fit("digits", train, test, settings=settings, callbacks=[report])
result = linfnet.evaluate(fitted.net, test, EPS, steps=20)
print(f"certified {result.certified:.3f} <= attacked {result.attacked:.3f} <= clean {result.clean:.3f}")
