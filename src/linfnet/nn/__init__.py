"""Modules: distance layers, mean shift, normalisation, and the nets built from them."""

from linfnet.nn.classifier import Classifier as Classifier
from linfnet.nn.classifier import count_parameters as count_parameters
from linfnet.nn.classifier import load_weights as load_weights
from linfnet.nn.distance import DistanceModule as DistanceModule
from linfnet.nn.distance import LpDistance as LpDistance
from linfnet.nn.distance import LpDistanceConv2d as LpDistanceConv2d
from linfnet.nn.mean_shift import MeanShift as MeanShift
from linfnet.nn.mean_shift import means_at_infinity as means_at_infinity
from linfnet.nn.mean_shift import reestimate_means as reestimate_means
from linfnet.nn.mean_shift import share_means as share_means
from linfnet.nn.net import LinfNet as LinfNet
from linfnet.nn.normalize import Normalize as Normalize
