"""Exact robustness: a complete search decides, image by image, whether an image within epsilon changes the class."""

from linfnet.certificates.exact.decide import Decided as Decided
from linfnet.certificates.exact.decide import Verifier as Verifier
from linfnet.certificates.exact.decide import decide as decide
from linfnet.certificates.exact.radii import ExactRadii as ExactRadii
from linfnet.certificates.exact.radii import exact_radius as exact_radius
