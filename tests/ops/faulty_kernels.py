"""Kernels with faults that the emulator must detect."""

from dataclasses import dataclass

import torch
from simt import SOURCES

from linfnet.ops.cuda.nvrtc import Argument, Kernel, Launcher

FAULTY = """
extern "C" __global__ void move(const float* source, float* target, int by) {
  target[threadIdx.x] = source[threadIdx.x + by];
}

extern "C" __global__ void write_at(float* target, int index) {
  if (threadIdx.x == 0) target[index] = 1.0f;
}

extern "C" __global__ void reverse(float* values, int size, int barrier) {
  __shared__ float staged[64];
  staged[threadIdx.x] = values[threadIdx.x];
  if (barrier) __syncthreads();
  values[threadIdx.x] = staged[size - 1 - threadIdx.x];
}

extern "C" __global__ void copy_late(const float* source, float* target, int wait) {
  __shared__ float staged[64];
  copy4(staged + threadIdx.x, source + threadIdx.x, true);
  if (wait) await_copies();
  target[threadIdx.x] = staged[threadIdx.x];
}

extern "C" __global__ void part(float* values) {
  if (threadIdx.x == 0) __syncthreads();
  else __syncwarp();
}

extern "C" __global__ void fill_shared(float* values, int size) {
  DYNAMIC_SHARED(float, space);
  for (int k = threadIdx.x; k < size; k += 32) space[k] = values[0];
}

extern "C" __global__ void ignore_flag(float* target, const int* use_dense) { target[threadIdx.x] = 1.0f; }

extern "C" __global__ void halve(const float* source, u16* halves, float* back, int size) {
  for (int k = threadIdx.x; k < size; k += blockDim.x) back[k] = from_half(halves[k] = to_half(source[k]));
}
"""


@dataclass(frozen=True)
class Faulty(Kernel):
    """A kernel in FAULTY."""

    def source(self) -> str:
        return (SOURCES / "instructions.cuh").read_text() + FAULTY


def run(emulator: Launcher, function: str, *, threads: int = 32, shared: int = 0, **arguments: Argument) -> None:
    """Launch one block of a faulty kernel."""
    device = torch.device("cpu")
    emulator.launch(device, Faulty("", function), (1, 1, 1), threads=threads, shared=shared, **arguments)
