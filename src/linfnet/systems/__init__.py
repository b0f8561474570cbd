"""Systems: the paper's net and the methods with which it is compared. Each system is one module with one class."""

from linfnet.systems.system import SYSTEMS as SYSTEMS
from linfnet.systems.system import FeatureModule as FeatureModule
from linfnet.systems.system import FeatureSystem as FeatureSystem
from linfnet.systems.system import LossModule as LossModule
from linfnet.systems.system import System as System
from linfnet.systems.system import WeightedSystem as WeightedSystem
from linfnet.systems.system import check_changes as check_changes
from linfnet.systems.system import has_effect as has_effect
from linfnet.systems.system import load_model as load_model
from linfnet.systems.system import system_of as system_of

# isort: split
# Importing a module registers its system.
from linfnet.systems.cap import Cap as Cap
from linfnet.systems.colt import Colt as Colt
from linfnet.systems.consistency import Consistency as Consistency
from linfnet.systems.crown_ibp import CrownIbp as CrownIbp
from linfnet.systems.crown_lbp import CrownLbp as CrownLbp
from linfnet.systems.hybrid import Hybrid as Hybrid
from linfnet.systems.ibp import Ibp as Ibp
from linfnet.systems.linf import Linf as Linf
from linfnet.systems.smoothadv import SmoothAdv as SmoothAdv
from linfnet.systems.smoothing import Smoothing as Smoothing
from linfnet.systems.sortnet import Sortnet as Sortnet
from linfnet.systems.sortnet_mlp import SortnetMlp as SortnetMlp
from linfnet.systems.sparse import Sparse as Sparse
