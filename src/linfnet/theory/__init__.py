"""The theory of the paper: separation of data sets, the nets that its theorems construct, and Lipschitz constants."""

from linfnet.theory.construct import check_separation as check_separation
from linfnet.theory.construct import nearest_neighbour_net as nearest_neighbour_net
from linfnet.theory.construct import rounding as rounding
from linfnet.theory.construct import widest_layer as widest_layer
from linfnet.theory.lipschitz import layer_bounds as layer_bounds
from linfnet.theory.lipschitz import lipschitz_estimate as lipschitz_estimate
from linfnet.theory.lipschitz import net_bounds as net_bounds
from linfnet.theory.separation import ClosePair as ClosePair
from linfnet.theory.separation import Separation as Separation
from linfnet.theory.separation import pairs_to_compare as pairs_to_compare
from linfnet.theory.separation import point_separation as point_separation
from linfnet.theory.separation import set_separation as set_separation
