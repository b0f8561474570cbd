"""Train a net by your own loop: the layers, the loss, the schedules and the estimation of the means are functions."""

import torch
from torch.utils.data import DataLoader

import linfnet
from linfnet.losses import mixture
from linfnet.nn import reestimate_means
from linfnet.schedules import Phases, cosine_learning_rate, mixing_coefficient, relaxation_p

EPS, THETA, LR = "0.1", 0.6, 0.03
torch.manual_seed(0)
train, test = linfnet.load("digits", "train"), linfnet.load("digits", "test")
net = linfnet.LinfNet((1, 8, 8), 10, hidden=(64, 64), mean=train.info.mean, std=train.info.std)
optimizer = torch.optim.Adam(net.parameters(), lr=LR, betas=(0.9, 0.99), eps=1e-10)
phases = Phases(3, 15, 3)  # epochs with p = 8, with rising p, and with p = infinity

net.train()
for epoch in range(phases.total):
    loader = DataLoader(train, batch_size=64, shuffle=True)
    for step, (pixels, labels) in enumerate(loader):
        now = epoch + step / len(loader)
        risen = phases.relaxation_progress(now)  # from 0 to 1 while p rises
        net.p = relaxation_p(risen, start=8, end=1000)
        mixing = mixing_coefficient(risen, start=0.5, end=0.02)
        optimizer.param_groups[0]["lr"] = cosine_learning_rate(now / phases.total, peak=LR)
        # Logits change at most `lipschitz` times as fast as pixels: theta in pixel units becomes a margin of logits.
        loss = mixture(net(pixels), labels, threshold=THETA * net.lipschitz, mixing=mixing, scale=net.scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# Only needed if training ends at a finite p: the means of the hidden layers differ at p = infinity.
reestimate_means(net, train.pixels().split(500))
net.eval()
result = linfnet.evaluate(net, test, EPS, steps=20)
print(f"certified {result.certified:.3f} <= attacked {result.attacked:.3f} <= clean {result.clean:.3f}")
