"""Systems: the paper's net and its peers. A file each, found by its name: nothing else is to be told of a new one."""

from linfnet.systems.find import check_changes as check_changes
from linfnet.systems.find import find_system as find_system
from linfnet.systems.find import load_model as load_model
from linfnet.systems.find import looks_at as looks_at
from linfnet.systems.find import system_names as system_names
from linfnet.systems.find import system_of as system_of
from linfnet.systems.system import Seen as Seen
from linfnet.systems.system import SeenSystem as SeenSystem
from linfnet.systems.system import System as System
