// The complete search of certificates/exact for one image and one rival.
#pragma once
#include <cstdint>

namespace linfnet {

// A reduced circuit with bounds on its nodes, as in certificates/exact/reduced.py.
struct Query {
  const std::int64_t *kinds, *starts, *offsets, *index;
  const float *weight, *low, *high;
  const float* image;  // the original pixels
  long stages, nodes, pixels, own, rival;
  long branches;
  double seconds;
};

enum Outcome { UNDECIDED, ROBUST, BROKEN };

struct Verdict {
  Outcome outcome;
  long branches;
};

// If the outcome is BROKEN, `image` receives the pixels of the image that was found.
Verdict search(const Query& query, float* image);

}  // namespace linfnet
