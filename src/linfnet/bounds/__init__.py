"""Bounds of conventional nets over boxes of inputs: intervals, and linear relaxation backwards and forwards."""

from linfnet.bounds.backward import linear_margins as linear_margins
from linfnet.bounds.boxes import Box as Box
from linfnet.bounds.forward import forward_boxes as forward_boxes
from linfnet.bounds.fused import fused_cross_entropy as fused_cross_entropy
from linfnet.bounds.intervals import interval_boxes as interval_boxes
from linfnet.bounds.intervals import interval_margins as interval_margins
from linfnet.bounds.intervals import linear_bounds as linear_bounds
from linfnet.bounds.intervals import smallest_margin as smallest_margin
from linfnet.bounds.intervals import worst_margins as worst_margins
from linfnet.bounds.layers import Layers as Layers
from linfnet.bounds.layers import through as through
from linfnet.bounds.lines import Slope as Slope
from linfnet.bounds.margins import Method as Method
from linfnet.bounds.margins import margin_bounds as margin_bounds
from linfnet.bounds.ramp import Ramp as Ramp
from linfnet.bounds.tight import backward_boxes as backward_boxes
