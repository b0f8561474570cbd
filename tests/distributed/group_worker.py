"""One of several processes that train a tiny net together; `test_group` starts them and reads their files."""

import sys
from pathlib import Path

import torch

from linfnet.data import load
from linfnet.distributed.group import ALONE, Group, joined
from linfnet.recipes import load_recipe
from linfnet.train import RunFolder, Trainer, predict

# 149 images in batches of 64: the last batch of 21 does not split evenly. All three phases, crops included.
CHANGES = ("limit=149", "width=24", "depth=3", "epochs=[2, 3, 2]", "batch=64", "pad=1", "data.flip=true")
STEPS = 20


def train(folder: Path, dtype: torch.dtype, group: Group = ALONE) -> dict[str, torch.Tensor]:
    """Twenty steps; the weights, means, losses of all steps and test logits, at p and at re-estimated infinity."""
    recipe = load_recipe("digits", CHANGES)
    images, test = load("digits", "train"), load("digits", "test").first(101)
    trainer = Trainer(recipe, images, test, torch.device("cpu"), folder=RunFolder(folder, recipe), group=group)
    trainer.net.to(dtype)
    trainer.record = trainer.record.to(dtype)
    records: list[torch.Tensor] = []
    while trainer.progress.step < STEPS:
        epoch, row = divmod(trainer.progress.step, trainer.steps_per_epoch)
        trainer._step(row, *next(trainer.batches.epoch(epoch, row)))
        trainer.progress.step += 1
        records.append(trainer.record[row].clone())
        if trainer.progress.step == 12:
            tested = trainer._test(test)
    state = {name: tensor.clone() for name, tensor in trainer.net.state_dict().items()}
    with trainer.net.at_infinity():
        logits = predict(trainer.net, test, group)
    shares = torch.tensor([tested.accuracy_at_p, tested.clean, *tested.certified.values()])
    return {**state, "records": torch.stack(records), "logits": logits, "tested": shares}


if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    with joined(torch.device("cpu")) as group:
        for dtype in (torch.float64, torch.float32):
            found = train(out, dtype, group)
            torch.save(found, out / f"{str(dtype).removeprefix('torch.')}-{group.rank}.pt")
    # Threads that outlive their group sometimes abort the process at exit.
    threads = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in threads if "gloo" in name], threads
