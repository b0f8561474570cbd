"""Interval bounds of a batch at one layer."""

import torch
from torch import Tensor


class Box:
    """Interval bounds of a batch [B, ...] at some layer, and the unperturbed values if they are needed (`centre`).

    A box is given by its ends or, with `Box.around`, by its middle and reach; the other pair is computed when it is
    used. Affine layers compute with middle and reach, activations with the ends.
    """

    def __init__(self, lower: Tensor, upper: Tensor, centre: Tensor | None = None) -> None:
        self.centre = centre
        self._ends: tuple[Tensor, Tensor] | None = (lower, upper)
        self._middle: tuple[Tensor, Tensor] | None = None

    @classmethod
    def around(cls, middle: Tensor, reach: Tensor, centre: Tensor | None = None) -> "Box":
        """Return the box of all x with |x - middle| <= reach; `reach` is not negative."""
        box = cls.__new__(cls)
        box.centre, box._ends, box._middle = centre, None, (middle, reach)
        return box

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The lower and the upper bounds, each [B, ...]."""
        if self._ends is None:
            middle, reach = self.middle_and_reach
            self._ends = middle - reach, middle + reach
        return self._ends

    @property
    def middle_and_reach(self) -> tuple[Tensor, Tensor]:
        """The middle of the box and half of its width, each [B, ...]."""
        if self._middle is None:
            lower, upper = self.ends
            middle = torch.lerp(lower, upper, 0.5)
            self._middle = middle, upper - middle
        return self._middle

    @property
    def lower(self) -> Tensor:
        return self.ends[0]

    @property
    def upper(self) -> Tensor:
        return self.ends[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values of one sample."""
        return tuple((self._ends or self.middle_and_reach)[0].shape[1:])
