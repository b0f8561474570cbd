"""Random bodies, most of which contain a step that breaks the proofs: whatever is accepted is certified correctly."""

import itertools
import random

import pytest
import torch
from torch import Tensor, nn

from linfnet.boxes import inner_box
from linfnet.certificates import certify_by_margin, interval_radius
from linfnet.errors import ArgumentError
from linfnet.nn import Classifier, LpDistance, MeanShift
from linfnet.nn.label_margin import label_on_top

FEATURES = 4
STEPS = {
    "distance": lambda body, x: body.distance(x),
    "shift": lambda body, x: body.shift(x),
    "large": lambda body, x: x + 2.0**20,
    "reverse": lambda body, x: body.offset - x,
    "half": lambda body, x: x * -0.3,
    "branches": lambda body, x: torch.max(x, body.offset - x),
    "join": lambda body, x: torch.cat([x[..., :2], -x[:, 2:]], axis=1),
    "stack": lambda body, x: torch.stack([x, x + 1024.0], 2).amin(2),
    "limits": lambda body, x: x.clamp(-0.2, 0.7),
    "shape": lambda body, x: x.view(x.size(0), 2, 2).transpose(1, 2).reshape(-1, 4),
}
# Steps that are not 1-Lipschitz, that mix samples, or that depend on the size of the batch.
WRONG = {
    "factor": lambda body, x: torch.add(body.offset, 5, x),
    "method": lambda body, x: body.offset.sub(7, x),
    "batch": lambda body, x: x / x.size(0),
    "batch limit": lambda body, x: x.clamp(max=x.shape[0] * 0.01),
    "batch shift": lambda body, x: x + x.size()[0],
    "batch size": lambda body, x: x.reshape(3, -1).amax(1, keepdim=True).expand(-1, 4).reshape(-1, 4),
    "double": lambda body, x: x + x,
    "scale": lambda body, x: x * 3,
    "learned": lambda body, x: x * body.offset,
    "samples": lambda body, x: torch.maximum(x, x.amax(0, keepdim=True)),
    "layer": lambda body, x: body.loud(x),
    "child": lambda body, x: body.loud_shift(x),
    "instance": lambda body, x: body.loud_finish(x),
}


class Loud(MeanShift):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


class Body(nn.Module):
    def __init__(self, choice: random.Random, steps: list[str]) -> None:
        super().__init__()
        self.steps = steps
        self.distance = LpDistance(FEATURES, FEATURES, bias=True, mean_shift=True)
        self.shift, self.loud, self.last = MeanShift(FEATURES), Loud(FEATURES), LpDistance(FEATURES, 2, bias=True)
        self.loud_shift, self.loud_finish = LpDistance(FEATURES, FEATURES), LpDistance(FEATURES, FEATURES)
        self.loud_shift.shift = Loud(FEATURES)
        if "instance" in steps:  # a replaced method is refused even in a layer that is not used
            self.loud_finish._finish = lambda distance: 10 * distance
        self.offset = nn.Parameter(torch.randn(FEATURES))
        with torch.no_grad():
            self.shift.running_mean.normal_()
            self.last.weight.add_(choice.choice([0.0, 0.0, 1.0, 2.0**10]))

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = (STEPS | WRONG)[step](self, x)
        return self.last(x)


def build(seed: int, wrong: str | None) -> Classifier:
    choice = random.Random(seed)
    steps = choice.choices(list(STEPS), k=choice.randint(1, 5))
    if wrong:
        steps.insert(choice.randint(0, len(steps)), wrong)
    torch.manual_seed(seed)
    return Classifier.wrap(Body(choice, steps).eval(), (FEATURES,), 2, mean=0.3, std=choice.choice([1.0, 0.3])).eval()


@pytest.mark.filterwarnings("ignore:This overload of")
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_step_is_refused_wherever_it_is(wrong: str):
    for seed in range(6):
        with pytest.raises(ArgumentError) as caught:
            build(seed, wrong)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(40))
def test_accepted_bodies_are_certified_correctly(seed: int):
    net = build(seed, None)
    images = torch.rand(60, FEATURES)
    images[:5] *= 1e-40
    logits = net(images)
    assert torch.equal(torch.cat([net(image) for image in images[:7].split(1)]), logits[:7])
    by_margin = certify_by_margin(net, images)
    assert torch.equal(by_margin.logits, logits)
    labels = by_margin.labels
    for radii in (by_margin.radii, interval_radius(net, images, labels, steps=10)):
        kept = radii > 0
        lower, upper = inner_box(images[kept], radii[kept].clamp(max=1))
        for corner in itertools.product((False, True), repeat=FEATURES):
            moved = torch.where(torch.tensor(corner), lower, upper)
            assert label_on_top(net(moved), labels[kept]).all()
