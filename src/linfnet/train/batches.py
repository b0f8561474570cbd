"""The batches of a training run: the order and augmentation of the images, and the part of each process."""

from collections.abc import Iterator

from torch import Tensor, nn

from linfnet.data import ImageSet, augment, plan_epoch, plan_light, plan_maps, relight, warp
from linfnet.distributed.group import Group
from linfnet.errors import ArgumentError
from linfnet.nn import Classifier
from linfnet.recipes import Recipe
from linfnet.systems import SYSTEMS
from linfnet.train.metrics import pixel_batches

# Number of training images from which running means are re-estimated before a test at p = inf.
MEAN_IMAGES = 8192


class Batches:
    """The training images in batches. Each process gets a part of each batch.

    Args:
        images: the training images, on the device of the net.
        recipe: the settings; they contain the size of a batch, the augmentation and the seed.
        group: the processes that share the work.
    """

    def __init__(self, images: ImageSet, recipe: Recipe, group: Group) -> None:
        self.images, self.recipe, self.group = images, recipe, group
        self.size = recipe.optimizer.batch
        self.sizes = [min(self.size, len(images) - start) for start in range(0, len(images), self.size)]
        """The number of images in each batch of an epoch, in all processes together."""

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch from the batch `first` on: pixels [B, C, H, W] and labels [B]."""
        size, seed, data = len(self.images), self.recipe.run.seed, self.recipe.data
        plan = plan_epoch(size, seed, epoch, pad=data.pad, flip=data.flip).to(self.images.labels.device)
        maps, light = self._maps(epoch), self._light(epoch)
        for start in range(first * self.size, size, self.size):
            mine = self.group.share(min(self.size, size - start))
            part = slice(start + mine.start, start + mine.stop)
            index = plan.order[part]
            images = self.images.images[index]
            if images.dim() == 4:  # vectors are not augmented
                images = augment(images, plan.top[part], plan.left[part], plan.flip[part], data.pad)
            pixels = self.images.as_pixels(images)
            if maps is not None:
                pixels = warp(pixels, maps[part])
            if light is not None:
                pixels = relight(pixels, light[part])
            yield pixels, self.images.labels[index]

    def _maps(self, epoch: int) -> Tensor | None:
        """Return a rotation and zoom [2, 2] for each image of an epoch, or None if the recipe has none."""
        rotate, zoom = self.recipe.data.rotate or 0.0, self.recipe.data.zoom or 0.0
        if not (rotate or zoom) or self.images.images.dim() != 4:
            return None
        maps = plan_maps(len(self.images), self.recipe.run.seed, epoch, rotate=rotate, zoom=zoom)
        return maps.to(self.images.labels.device)

    def _light(self, epoch: int) -> Tensor | None:
        """Return a factor and a summand [2] for each image of an epoch, or None if the recipe changes no light."""
        contrast, brightness = self.recipe.data.contrast or 0.0, float(self.recipe.data.brightness or 0)
        if not (contrast or brightness) or self.images.images.dim() != 4:
            return None
        light = plan_light(len(self.images), self.recipe.run.seed, epoch, contrast=contrast, brightness=brightness)
        return light.to(self.images.labels.device)

    def for_means(self) -> Iterator[Tensor]:
        """Yield the pixels [B, C, H, W] of the first images, not augmented: running means are estimated from them."""
        batches = pixel_batches(self.images.first(MEAN_IMAGES), self.size)
        return (batch[self.group.share(len(batch))] for batch in batches)


def check_batches(batches: Batches, net: Classifier) -> None:
    """Raise an error if the processes cannot share the batches, or if the last batch has too few images."""
    name, processes = batches.recipe.system_name, batches.group.size
    needs_whole_batch = SYSTEMS[name].needs_whole_batch
    batch_norm = any(isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d) for each in net.modules())
    if processes > 1 and (batch_norm or needs_whole_batch):
        reason = f"system {name!r}" if needs_whole_batch else "batch norm"
        raise ArgumentError(
            f"the run has {processes} processes, but {reason} needs all images of a batch in one; start a single "
            "process, without torchrun"
        )
    if min(batches.sizes) < (2 if batch_norm else processes):
        raise ArgumentError(
            f"optimizer.batch is {batches.size}: it leaves a last batch of {min(batches.sizes)} images, "
            f"too few for {f'{processes} processes' if processes > 1 else 'batch norm'}"
        )
