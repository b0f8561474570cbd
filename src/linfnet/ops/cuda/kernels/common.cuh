// Shared by all kernels: a glossary, scales that are powers of two, and the test of the use_dense flag.
//
// Matrices are row-major: x [n, features], w [out, features], y and grad [n, out].
// The indices b, o and i denote rows, outputs and features.
//
//   pair             one row of x and one row (output) of w; y contains one distance per pair
//   slope            sign(x - w) |x - w|^(p - 1), the derivative of |x - w|^p / p with respect to x
//   coefficient      c[b, o] = grad y^(1 - p), the factor of the slopes of a pair
//   residual         the exact distance minus y, which is rounded to float32; the slopes depend on it
//   pair_max         the largest |x - w| of a pair
//   input_max        bits of the layer's largest |x| and largest |w| (bits of non-negative floats order like integers)
//   output_max       bits of the layer's largest y and largest |grad|
//   scale            power of two by which x and w are multiplied, so that powers stay within the float range
//   target_exponent  the scaled maximum is between 2^(target_exponent - 1) and 2^target_exponent
//   gradient scale   power of two by which gradients are multiplied while they are summed
//   use_dense        flag on the device: 1 if the dense kernels compute the layer, 0 if other kernels do
//   dense kernel     reads all features of every pair; returns at once if use_dense is given and 0
//   pruned kernel    reads only the listed features; returns at once if use_dense is 1
//   gap, farthest    the smallest and the largest possible |x - w| for any x within the bounds of a box or of a batch
//   list, entry      the features (or outputs) that can affect a result, as pairs of index and weight
//   threshold        features with farthest < threshold are not listed for an output
//   transposed       [features, padded] or [out, padded]: rows of the batch last, padded with copies of the last row
//   nonfinite        marks rows and outputs whose gradients contain NaN or infinity
//   tile             64 rows of x by 64 rows of w: the pairs of one block of threads
//   run              32 consecutive features: the first pass finds the run that contains a maximum, not the feature
//   part, span       the part of a sum that one block computes, and the number of features (rows, outputs) in it
//   chain            a short sequence of multiplications that raises a number to a whole power
//   expanded         (x - w)^p written as a sum of products of powers of x and of w, for matrix multiplication
//   unexpanded pair  pair whose expansion cancels too much: its slopes are computed directly
#pragma nv_diag_suppress 177  // not every kernel uses every function
#include "instructions.cuh"
typedef long long i64;

#define FULL_MASK 0xffffffffu
#define INFINITY_F __int_as_float(0x7f800000)

// Whether a dense kernel returns at once. The device decides, so that the host need not wait for the flag.
static __device__ __forceinline__ bool dense_disabled(const int* use_dense) { return use_dense && !*use_dense; }

// 2^e for -126 <= e <= 127, exactly.
static __device__ __forceinline__ float two_to(int e) { return __int_as_float((e + 127) << 23); }

// Return the power of two s with 2^(target_exponent - 1) < s * largest <= 2^target_exponent, or 1 if largest is zero
// or not finite.
static __device__ __forceinline__ float scale_for(float largest, int target_exponent) {
  if (!(largest > 0.0f && largest < INFINITY_F)) return 1.0f;
  int e = target_exponent - 1 - ilogbf(largest);
  return two_to(e < -126 ? -126 : e > 126 ? 126 : e);
}

// Return the scale that moves the layer's largest |grad| to between 2^23 and 2^24. Multiplied by a power of y between
// 2^-100 and 2^100, gradients then stay in the float range.
static __device__ __forceinline__ float gradient_scale(const u32* __restrict__ output_max) {
  return scale_for(__uint_as_float(output_max[1]), 24);
}

// 1 / gradient_scale, exactly.
static __device__ __forceinline__ float inverse_gradient_scale(const u32* __restrict__ output_max) {
  return __int_as_float(0x7f000000 - __float_as_int(gradient_scale(output_max)));
}

// Pairs below these limits are recomputed exactly.
#define SAFE_SUM 7.888609052210118e-31f  // 2^-100: smallest trusted sum of scaled powers
#define SAFE_RATIO 0.0625f               // smallest trusted pair_max, relative to the layer's, with special functions
