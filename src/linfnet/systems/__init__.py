"""Systems: the paper's net and the methods with which it is compared. Each system is one module with one class."""

import importlib
import pkgutil

from linfnet.systems.system import SYSTEMS as SYSTEMS
from linfnet.systems.system import FeatureModule as FeatureModule
from linfnet.systems.system import FeatureSystem as FeatureSystem
from linfnet.systems.system import LossModule as LossModule
from linfnet.systems.system import System as System
from linfnet.systems.system import WeightedSystem as WeightedSystem
from linfnet.systems.system import check_built as check_built
from linfnet.systems.system import check_changes as check_changes
from linfnet.systems.system import has_effect as has_effect
from linfnet.systems.system import load_model as load_model
from linfnet.systems.system import system_of as system_of

# isort: split
from linfnet.systems.linf import Linf as Linf

# Importing a module registers its system.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
