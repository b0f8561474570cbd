"""l-infinity distance nets: classifiers that are 1-Lipschitz by construction and are certified by one forward pass."""

from linfnet.attacks import ATTACKS, pgd
from linfnet.certificates import (
    Certificate,
    Certification,
    MarginCertificate,
    certificates_of,
    certified_by_interval,
    certify_by_margin,
    certify_images,
)
from linfnet.data import load
from linfnet.epsilon import parse_epsilon
from linfnet.evaluation import evaluate
from linfnet.nn import Classifier, LinfNet, LpDistance, LpDistanceConv2d
from linfnet.ops import linf_distance_bounds, lp_distance
from linfnet.systems import load_model
from linfnet.version import __version__

__all__ = [
    "ATTACKS",
    "Certificate",
    "Certification",
    "Classifier",
    "LinfNet",
    "LpDistance",
    "LpDistanceConv2d",
    "MarginCertificate",
    "__version__",
    "certificates_of",
    "certified_by_interval",
    "certify_by_margin",
    "certify_images",
    "evaluate",
    "linf_distance_bounds",
    "load",
    "load_model",
    "lp_distance",
    "parse_epsilon",
    "pgd",
]
