"""Distances on NVIDIA GPUs: CUDA kernels shipped as source and compiled at first use. Importing touches no GPU."""

from linfnet.ops.cuda.dispatch import Cuda as Cuda
from linfnet.ops.cuda.dispatch import status as status
