"""Objectives: a file each, found by recipes as `loss.name`, and the pure functions they are made of."""

from linfnet.losses.cross_entropies import CrossEntropy as CrossEntropy
from linfnet.losses.cross_entropies import ThresholdedCrossEntropy as ThresholdedCrossEntropy
from linfnet.losses.hinges import Hinge as Hinge
from linfnet.losses.mixtures import Mixture as Mixture
from linfnet.losses.objectives import Moment as Moment
from linfnet.losses.objectives import Objective as Objective
from linfnet.losses.objectives import find_objective as find_objective
from linfnet.losses.objectives import objective as objective
from linfnet.losses.objectives import objective_names as objective_names
from linfnet.losses.terms import clipped_hinge as clipped_hinge
from linfnet.losses.terms import hinge as hinge
from linfnet.losses.terms import margin as margin
from linfnet.losses.terms import margin_shares as margin_shares
from linfnet.losses.terms import mixture as mixture
from linfnet.losses.terms import scaled_cross_entropy as scaled_cross_entropy
from linfnet.losses.terms import thresholded as thresholded
