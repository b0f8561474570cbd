"""The l_p distance operation: a reference implementation, and faster kernels that must agree with it.

Importing the module of an implementation registers it in `KERNELS`, in order of increasing preference.
"""

from linfnet.ops import cpu as cpu
from linfnet.ops import cuda as cuda
from linfnet.ops import sparse_cpu as sparse_cpu
from linfnet.ops.api import check_p as check_p
from linfnet.ops.api import linf_distance_bounds as linf_distance_bounds
from linfnet.ops.api import lp_distance as lp_distance
from linfnet.ops.cuda.half import training_in_float16 as training_in_float16
from linfnet.ops.deciding import count_deciding as count_deciding
from linfnet.ops.deciding import count_deciding_sparse as count_deciding_sparse
from linfnet.ops.implementations import KERNELS as KERNELS
from linfnet.ops.implementations import Implementation as Implementation
from linfnet.ops.implementations import choose as choose
from linfnet.ops.implementations import default_implementation as default_implementation
from linfnet.ops.implementations import names as names
from linfnet.ops.powers import snapped_p as snapped_p
from linfnet.ops.reference import Reference as Reference
from linfnet.ops.sorted import sorted_linf_bounds as sorted_linf_bounds
from linfnet.ops.sorted import sorted_linf_distance as sorted_linf_distance
from linfnet.ops.sparse import SPARSE_KERNELS as SPARSE_KERNELS
from linfnet.ops.sparse import SparseImplementation as SparseImplementation
from linfnet.ops.sparse import check_connections as check_connections
from linfnet.ops.sparse import sparse_linf_bounds as sparse_linf_bounds
from linfnet.ops.sparse import sparse_linf_distance as sparse_linf_distance
from linfnet.ops.sparse import sparse_linf_measured as sparse_linf_measured
from linfnet.ops.sparse_lp import sparse_lp_distance as sparse_lp_distance
