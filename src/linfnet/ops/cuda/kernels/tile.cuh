// Load tiles of TILE rows and DEPTH features into shared memory, transposed (feature by feature), so that a thread
// reads the values of neighbouring rows in one access. A warp loads 16 rows x 2 float4: it reads full sectors and
// causes no bank conflicts.
#include "common.cuh"

static_assert(DEPTH == 16, "a thread loads two float4 of each row, 8 features apart");
#define TILE_STRIDE (TILE + 4)

struct Staged {
  float4 v[2];
};

// Read two float4 of one row, 8 features apart. Features beyond the end are zero, which changes neither a maximum nor a
// sum.
static __device__ __forceinline__ Staged fetch(const float* __restrict__ row, int k, int stop, bool aligned) {
  Staged s;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    int at = k + 8 * j;
    if (aligned && at + 3 < stop) {
      s.v[j] = *reinterpret_cast<const float4*>(row + at);
    } else {
      s.v[j].x = at + 0 < stop ? row[at + 0] : 0.0f;
      s.v[j].y = at + 1 < stop ? row[at + 1] : 0.0f;
      s.v[j].z = at + 2 < stop ? row[at + 2] : 0.0f;
      s.v[j].w = at + 3 < stop ? row[at + 3] : 0.0f;
    }
  }
  return s;
}

// Write the values that `fetch` read, starting at feature 4 * vector of the tile.
static __device__ __forceinline__ void store_tile(float (*tile)[TILE_STRIDE], int row, int vector, const Staged& s,
                                                  float scale) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    int k = (vector + 2 * j) * 4;
    tile[k + 0][row] = s.v[j].x * scale;
    tile[k + 1][row] = s.v[j].y * scale;
    tile[k + 2][row] = s.v[j].z * scale;
    tile[k + 3][row] = s.v[j].w * scale;
  }
}
