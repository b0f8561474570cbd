"""Distances on NVIDIA GPUs, by CUDA kernels that are compiled at first use. Importing does not initialise CUDA."""

from linfnet.ops.cuda.dispatch import Cuda as Cuda
from linfnet.ops.cuda.dispatch import status as status
from linfnet.ops.cuda.sparse import SparseCuda as SparseCuda
