"""A user's own module as a classifier with the certificates of `LinfNet`."""

import contextlib
import math
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from linfnet.errors import ArgumentError
from linfnet.nn.classifier import Classifier
from linfnet.nn.nonexpansive import Nonexpansive, Rounding
from linfnet.nn.program import Program
from linfnet.nn.proven import ProvenNet, check_std
from linfnet.results import Results


class WrappedNet(ProvenNet):
    """A module with distance layers on normalised images; built by `Classifier.wrap`.

    In training mode `forward` calls the body. In eval mode it runs the operations that torch.fx found in the body:
    these are the operations that the certificates cover.

    Args:
        body: maps [B, *image_shape] to logits [B, classes].
        image_shape, classes, mean, std: as in `Classifier`.
    """

    system: ClassVar[str] = "wrapped"
    traced: ClassVar[bool] = True

    def __init__(
        self,
        body: nn.Module,
        image_shape: Sequence[int],
        classes: int,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
    ) -> None:
        if not isinstance(body, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"body is a {type(body).__name__}; expected a torch.nn.Module")
        for name, module in body.named_modules():
            if hasattr(module, "_orig_mod"):
                raise ArgumentError(f"body is compiled in whole or in part ({name!r}); expected the original module")
            if isinstance(module, Classifier):
                where = f"contains the {type(module).__name__} {name!r}" if name else f"is a {type(body).__name__}"
                raise ArgumentError(f"body {where}, a Classifier that normalises its images itself; expected layers")
        super().__init__(image_shape, classes, mean=mean, std=std, learn_scale=True)
        check_std(self.std)
        self.body = body
        self._program: Program | None = None
        self.training = body.training
        part = next((part for part in body.parameters() if part.is_floating_point()), self.scale)
        self.scale.data = self.scale.data.to(part.device, part.dtype)
        self.normalize.to(part.device, part.dtype)
        # Numbers in no order, without a change of the random state.
        pixels = torch.arange(3 * math.prod(self.image_shape), device=part.device) * 0.618 % 1
        self._try(pixels.to(part.dtype).view(3, *self.image_shape))

    @torch.no_grad()
    def _try(self, images: Tensor) -> None:
        """Run every analysis once, so that an error occurs here and not at the first certificate."""
        for name, part in self.used_tensors():
            if part.is_floating_point() and part.dtype != images.dtype:
                raise ArgumentError(f"{name} has dtype {part.dtype}; expected {images.dtype}, as other parameters have")
            if not bool(part.isfinite().all()):
                raise ArgumentError(f"{name} contains NaN or infinity; expected finite numbers")
        with self.at_infinity():
            logits, (low, high), expected = self.measure(images)[0], self.bounds(images, images), self(images)
        if not torch.equal(logits.nan_to_num(), expected.nan_to_num()) or bool(
            ((expected < low) | (expected > high)).any()
        ):
            own = {type(module) for module in self.body.modules() if isinstance(module, Nonexpansive)}
            names = sorted(kind.__name__ for kind in own if not kind.__module__.startswith("linfnet."))
            where = " or ".join(names) or f"the body, a {type(self.body).__name__}"
            raise ArgumentError(f"measure or bounds do not agree with forward in {where}; expected the same results")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, classes] of images [B, *image_shape] in [0, 1]."""
        x = self.normalize(self.check_shape(images))
        if not len(x):  # the body may use reshape(len(x), -1), which needs a sample
            return x.new_zeros(0, self.classes)
        if self.training:
            logits = self.body(x)
        else:
            with _in_eval_mode(self.body):
                logits = self.program()(x)
        if logits.shape != (len(images), self.classes):
            shape = tuple(logits.shape)
            raise ArgumentError(f"body returns shape {shape} for {len(images)} samples; expected [B, {self.classes}]")
        return logits

    def program(self) -> Program:
        """Return the operations of the body in eval mode; they are traced again if the body was changed."""
        if self._program is None or not self._program.is_current():
            with _in_eval_mode(self.body):
                self._program = Program(self.body)
        return self._program

    def frozen(self) -> Self:
        copy = super().frozen()
        known = self._program is not None and self._program.is_current()
        copy._program = self.program().of(copy.body) if known else Program(copy.body)
        if not known:
            self._program = copy._program.of(self.body)
        return copy

    def used_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from ((f"body.{name}", part) for name, part in self.program().tensors())
        yield from ((f"normalize.{name}", part) for name, part in self.normalize.named_buffers())

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.normalize.bounds(self.check_shape(lower), self.check_shape(upper))
        if not len(low):
            return self(lower), self(upper)
        return self.program().bounds(low, high)

    def measure(self, images: Tensor) -> tuple[Tensor, Rounding]:
        if not len(self.check_shape(images)):
            return self(images), Rounding()
        return self.program().measure(self.normalize(images))

    def save(self, folder: Path | str, *, class_names: Sequence[str] = (), results: Results | None = None) -> None:
        """Raise an error: the code of the body cannot be saved."""
        raise ArgumentError(
            "a wrapped net has no model folder, because the Python code of its body cannot be saved; save the weights "
            "with torch.save(net.body.state_dict(), path), and load them into a new body before you wrap it"
        )

    def describe(self) -> str:
        return f"A wrapped {type(self.body).__name__}. Its certificates hold for the float32 program itself."

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_program": None}  # the generated function cannot be pickled


@contextlib.contextmanager
def _in_eval_mode(body: nn.Module) -> Generator[None]:
    """Context in which all modules are in eval mode: a module of an evaluated net may be in training mode."""
    in_training = [module for module in body.modules() if module.training]
    for module in in_training:
        module.training = False
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
