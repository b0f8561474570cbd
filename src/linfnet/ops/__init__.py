"""One operation, several implementations: the mathematics of l_p distances and the kernels that must agree with it."""

from linfnet.ops import cpu as cpu
from linfnet.ops.addition_chain import snapped_p as snapped_p
from linfnet.ops.api import check_p as check_p
from linfnet.ops.api import linf_distance_bounds as linf_distance_bounds
from linfnet.ops.api import lp_distance as lp_distance
from linfnet.ops.cpu import Cpu as Cpu
from linfnet.ops.cuda import Cuda as Cuda
from linfnet.ops.reference import Reference as Reference
from linfnet.ops.registry import Implementation as Implementation
from linfnet.ops.registry import choose as choose
from linfnet.ops.registry import default_implementation as default_implementation
from linfnet.ops.registry import names as names
from linfnet.ops.registry import register as register
from linfnet.ops.registry import serves as serves

register(Reference())
if cpu.available():
    register(Cpu())
register(Cuda())
