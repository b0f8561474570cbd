"""l-infinity distance nets: networks that are 1-Lipschitz by construction, so that one forward pass is a proof."""

from linfnet.attacks import pgd as pgd
from linfnet.certificates import certified_by_interval as certified_by_interval
from linfnet.certificates import certified_by_margin as certified_by_margin
from linfnet.certificates import margin_radius as margin_radius
from linfnet.data import load as load
from linfnet.epsilon import parse_epsilon as parse_epsilon
from linfnet.evaluation import evaluate as evaluate
from linfnet.nn import LinfNet as LinfNet
from linfnet.ops import linf_distance_bounds as linf_distance_bounds
from linfnet.ops import lp_distance as lp_distance
from linfnet.systems import load_model as load_model
from linfnet.version import __version__ as __version__
