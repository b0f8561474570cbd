"""Certify and attack your own module: two rings in the plane, with vectors [B, 2] in [0, 1] as inputs."""

import torch
from torch import nn

import linfnet
from linfnet.losses import hinge
from linfnet.nn import reestimate_means
from linfnet.schedules import cosine_learning_rate, relaxation_p


class Rings(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = linfnet.LpDistance(2, 32, mean_shift=True)
        self.second = linfnet.LpDistance(32, 32, mean_shift=True, identity_init=True)
        self.last = linfnet.LpDistance(32, 2, bias=True)

    def forward(self, x):
        return -self.last(torch.relu(self.second(self.first(x))))


torch.manual_seed(0)
angle, labels = 2 * torch.pi * torch.rand(300), torch.arange(300) % 2
radius = 0.15 + 0.2 * labels + 0.05 * torch.rand(300)
points = 0.5 + radius.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], 1)

net = linfnet.Classifier.wrap(Rings(), image_shape=(2,), classes=2, mean=0.5, std=0.25)
optimizer, steps, eps = torch.optim.Adam(net.parameters()), 300, "0.03"
for step in range(steps):
    net.p = relaxation_p(step / (0.9 * steps))  # the exponent of the distances rises from 8 to infinity
    optimizer.param_groups[0]["lr"] = cosine_learning_rate(step / steps, peak=0.03)
    optimizer.zero_grad()
    hinge(net(points), labels, threshold=0.4).backward()
    optimizer.step()
reestimate_means(net, [points])
clean = (linfnet.certify(net, points).prediction == labels).float().mean()
attacked = (linfnet.attack(net, points, labels, eps).prediction == labels).float().mean()
certified = linfnet.certify(net, points, labels).at(eps).float().mean()
print(f"certified {certified:.3f} <= attacked {attacked:.3f} <= clean {clean:.3f}")
