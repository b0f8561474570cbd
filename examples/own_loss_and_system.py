"""A loss and a system of your own. On the command line: linfnet --import own_loss_and_system.py train …"""

from dataclasses import dataclass

import linfnet
from linfnet.losses import Objective
from linfnet.nn.label_margin import margin
from linfnet.systems import Linf


@linfnet.LOSSES.register("squared_hinge")
@dataclass(frozen=True)
class SquaredHinge(Objective):
    """The squared hinge, with an upper limit. Its fields are keys of [loss] in a recipe."""

    ceiling: float = 1.0
    """Largest loss of a sample."""

    def __call__(self, logits, labels, state, *, scale, lipschitz):
        missing = (1 - margin(logits, labels) / self.threshold(lipschitz)).clamp(min=0)
        return missing.square().clamp(max=self.ceiling).mean()


@linfnet.SYSTEMS.register("pyramid")
@dataclass(frozen=True)
class Pyramid(Linf):
    """An l_inf-distance net whose layers become narrower."""

    def build(self, recipe, info):
        hidden = [recipe.model.width // 2**k for k in range(recipe.model.depth - 1)]
        return linfnet.LinfNet(info.image_shape, len(info.classes), hidden, mean=info.mean, std=info.std, p=8)


if __name__ == "__main__":  # not if the file is imported
    names = {"loss.name": "squared_hinge", "system.name": "pyramid"}
    fitted = linfnet.fit("digits", settings={**names, "loss.ceiling": 4, "schedule.epochs": [3, 15, 3]})
    result = linfnet.evaluate(fitted.net, linfnet.load("digits", "test"), "0.1", steps=9)
    print(f"certified {result.certified:.3f} <= attacked {result.attacked:.3f} <= clean {result.clean:.3f}")
