// The complete search for an image of a box for which a rival logit is not below the logit of the label.
//
// The rules are those of certificates/exact/search.py, which explains them. Bounds of all nodes are swept forwards and
// backwards until they do not change; then the search branches on the disjunction with the fewest candidates. Frames of
// the stack have copies of the bounds. No fast-math: every operation must round as in the program.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "search.hpp"

namespace linfnet {
namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr int SWEEPS = 30, LONGEST = 10000;

enum Kind { LEAF, DISTANCE, MAXIMUM, SUBTRACT, DIVIDE, MULTIPLY, AT_LEAST, AT_MOST, NEGATE };

// Whole numbers in the order of the float32 numbers; both zeros are 0.
std::int64_t order(float z) {
  std::int32_t bits;
  std::memcpy(&bits, &z, sizeof bits);
  return bits < 0 ? -std::int64_t(bits & 0x7FFFFFFF) : bits;
}

float number(std::int64_t order) {
  const std::uint32_t bits = order < 0 ? std::uint32_t(-order) | 0x80000000u : std::uint32_t(order);
  float z;
  std::memcpy(&z, &bits, sizeof z);
  return z;
}

float above(float z) { return std::nextafterf(z, INF); }
float below(float z) { return std::nextafterf(z, -INF); }

// The largest z with fl(z - w) <= u. The first guess is wrong by a few numbers at most.
float largest_minuend(float w, float u) {
  float z = float(double(w) + (double(u) + above(u)) / 2);
  while (z - w > u) z = below(z);
  for (float next = above(z); next - w <= u; next = above(z)) z = next;
  return z;
}

// The smallest z with fl(z - w) >= least.
float smallest_minuend(float w, float least) { return -largest_minuend(-w, -least); }

float apply(Kind kind, float z, float w) {
  switch (kind) {
    case SUBTRACT:
      return z - w;
    case DIVIDE:
      return z / w;
    case MULTIPLY:
      return z * w;
    case AT_LEAST:
      return std::max(z, w);
    case AT_MOST:
      return std::min(z, w);
    default:
      return -z;
  }
}

// The largest z in [low, high] with f(z, w) <= u, where f(low, w) <= u.
float largest_input(Kind kind, float w, float u, float low, float high) {
  std::int64_t good = order(low), bad = order(high) + 1;
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (apply(kind, number(middle), w) <= u ? good : bad) = middle;
  }
  return number(good);
}

// The smallest z in [low, high] with f(z, w) >= least, where f(high, w) >= least.
float smallest_input(Kind kind, float w, float least, float low, float high) {
  std::int64_t bad = order(low) - 1, good = order(high);
  while (good - bad > 1) {
    const std::int64_t middle = bad + (good - bad) / 2;
    (apply(kind, number(middle), w) >= least ? good : bad) = middle;
  }
  return number(good);
}

struct Candidate {
  long connection;
  bool positive;
  float reach;  // the largest value that it can have
};

// Bounds on all nodes, and on a number t with own <= t <= rival.
struct Box {
  std::vector<float> low, high;
  float least = -INF, most = INF;
};

// An open disjunction: node >= demand by one of the candidates from `next` on.
struct Frame {
  Box box;
  std::vector<Candidate> candidates;
  Kind kind;  // of the node; LEAF: the interval of t is halved
  float demand;
  std::size_t next;
};

class Search {
 public:
  explicit Search(const Query& query) : net(query), smallest(query.nodes), largest(query.nodes), values(query.nodes) {}

  Verdict run(float* image) {
    const auto start = std::chrono::steady_clock::now();
    Box box;
    box.low.assign(net.low, net.low + net.nodes);
    box.high.assign(net.high, net.high + net.nodes);
    std::vector<Frame> stack;
    long branches = 0;
    for (;;) {
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      if (branches >= net.branches || spent.count() > net.seconds) return {UNDECIDED, branches};
      chosen = -1;
      ++branches;
      if (propagate(box)) {
        if (try_images(box, image)) return {BROKEN, branches};
        // Without open disjunctions and with a single t, every image of the box is one, unless LONGEST sweeps ended.
        if (chosen < 0 && box.least == box.most) return {UNDECIDED, branches};
        stack.push_back(split(std::move(box)));
      }
      // The next branch of the deepest disjunction that has one.
      while (!stack.empty() && !take(stack.back(), box)) stack.pop_back();
      if (stack.empty()) return {ROBUST, branches};
      if (exhausted(stack.back())) stack.pop_back();
    }
  }

 private:
  const Query& net;
  std::vector<float> smallest, largest;  // bounds of the nodes that follow from their inputs
  std::vector<float> values;
  long fewest = 0;  // candidates of `chosen`
  long chosen = -1;
  int chosen_stage = 0;

  // Apply all rules until nothing changes; return false at a contradiction.
  bool propagate(Box& box) {
    // After SWEEPS sweeps a branch is faster, if there is one.
    for (int sweep = 0; sweep < SWEEPS || (sweep < LONGEST && chosen < 0 && box.least == box.most); ++sweep) {
      if (!forwards(box)) return false;
      const long own = net.own, rival = net.rival;
      box.least = std::max(box.least, box.low[own]);
      box.most = std::min(box.most, box.high[rival]);
      if (box.least > box.most) return false;
      bool changed = false;
      if (box.most < box.high[own]) box.high[own] = box.most, changed = true;
      if (box.least > box.low[rival]) box.low[rival] = box.least, changed = true;
      if (box.low[own] > box.high[own] || box.low[rival] > box.high[rival]) return false;
      if (!backwards(box, changed)) return false;
      if (!changed) break;
    }
    return true;
  }

  bool forwards(Box& box) {
    for (int s = 0; s < net.stages; ++s) {
      const Kind kind = Kind(net.kinds[s]);
      if (kind == LEAF) continue;
      for (long n = net.starts[s]; n < net.starts[s + 1]; ++n) {
        float low, high;
        bounds(kind, n, box.low.data(), box.high.data(), low, high);
        smallest[n] = low;
        largest[n] = high;
        if (low > box.low[n]) box.low[n] = low;
        if (high < box.high[n]) box.high[n] = high;
        if (box.low[n] > box.high[n]) return false;
      }
    }
    return true;
  }

  void bounds(Kind kind, long n, const float* low, const float* high, float& lowest, float& highest) const {
    const long first = net.offsets[n], last = net.offsets[n + 1];
    if (kind == DISTANCE) {
      lowest = highest = 0;
      for (long c = first; c < last; ++c) {
        const float w = net.weight[c], a = low[net.index[c]] - w, b = high[net.index[c]] - w;
        lowest = std::max(lowest, std::max(a, -b));
        highest = std::max(highest, std::max(-a, b));
      }
    } else if (kind == MAXIMUM) {
      lowest = highest = -INF;
      for (long c = first; c < last; ++c) {
        lowest = std::max(lowest, low[net.index[c]]);
        highest = std::max(highest, high[net.index[c]]);
      }
    } else {
      const long input = net.index[first];
      lowest = apply(kind, low[input], net.weight[first]);
      highest = apply(kind, high[input], net.weight[first]);
      if (kind == NEGATE) std::swap(lowest, highest);
    }
  }

  // Tighten the bounds of a node; return false if it has no value left.
  static bool at_most(Box& box, long n, float most, bool& changed) {
    if (most < box.high[n]) box.high[n] = most, changed = true;
    return box.low[n] <= box.high[n];
  }
  static bool at_least(Box& box, long n, float least, bool& changed) {
    if (least > box.low[n]) box.low[n] = least, changed = true;
    return box.low[n] <= box.high[n];
  }

  bool backwards(Box& box, bool& changed) {
    chosen = -1;
    for (int s = net.stages - 1; s >= 0; --s) {
      const Kind kind = Kind(net.kinds[s]);
      if (kind == LEAF) continue;
      for (long n = net.starts[s + 1] - 1; n >= net.starts[s]; --n) {
        // Bounds that follow from the inputs demand nothing of them.
        const bool limited = box.high[n]<largest[n], demanded = box.low[n]> smallest[n];
        if (limited && !limit(box, kind, n, changed)) return false;
        if (demanded && !demand(box, kind, s, n, changed)) return false;
      }
    }
    return true;
  }

  bool limit(Box& box, Kind kind, long n, bool& changed) const {
    const float most = box.high[n];
    for (long c = net.offsets[n]; c < net.offsets[n + 1]; ++c) {
      const long input = net.index[c];
      const float w = net.weight[c];
      if (kind == DISTANCE) {
        if (box.high[input] - w > most && !at_most(box, input, largest_minuend(w, most), changed)) return false;
        if (box.low[input] - w < -most && !at_least(box, input, smallest_minuend(w, -most), changed)) return false;
      } else if (kind == MAXIMUM) {
        if (!at_most(box, input, most, changed)) return false;
      } else if (kind == NEGATE) {
        if (!at_least(box, input, -most, changed)) return false;
      } else {
        if (apply(kind, box.low[input], w) > most) return false;
        const float end = largest_input(kind, w, most, box.low[input], box.high[input]);
        if (!at_most(box, input, end, changed)) return false;
      }
    }
    return true;
  }

  bool demand(Box& box, Kind kind, int stage, long n, bool& changed) {
    const float least = box.low[n];
    const long first = net.offsets[n], last = net.offsets[n + 1];
    if (kind == NEGATE) return at_most(box, net.index[first], -least, changed);
    if (kind != DISTANCE && kind != MAXIMUM) {
      const long input = net.index[first];
      const float w = net.weight[first];
      if (apply(kind, box.high[input], w) < least) return false;
      return at_least(box, input, smallest_input(kind, w, least, box.low[input], box.high[input]), changed);
    }
    long count = 0;
    Candidate only{};
    for (long c = first; c < last; ++c) {
      const long input = net.index[c];
      const float w = kind == DISTANCE ? net.weight[c] : 0.0f;
      const float up = box.high[input] - w, down = kind == DISTANCE ? w - box.low[input] : -INF;
      if (box.low[input] - w >= least || (kind == DISTANCE && w - box.high[input] >= least)) return true;  // attained
      if (up >= least) ++count, only = {c, true, up};
      if (down >= least) ++count, only = {c, false, down};
    }
    if (count == 0) return false;
    if (count == 1) return force(box, kind, only, least, changed);
    if (chosen < 0 || count < fewest) fewest = count, chosen = n, chosen_stage = stage;
    return true;
  }

  bool force(Box& box, Kind kind, const Candidate& one, float least, bool& changed) const {
    const long input = net.index[one.connection];
    const float w = net.weight[one.connection];
    if (kind == MAXIMUM) return at_least(box, input, least, changed);
    if (one.positive) return at_least(box, input, smallest_minuend(w, least), changed);
    return at_most(box, input, largest_minuend(w, -least), changed);
  }

  // The candidate must stay below the demand.
  bool exclude(Box& box, Kind kind, const Candidate& one, float least, bool& changed) const {
    const long input = net.index[one.connection];
    const float w = net.weight[one.connection], most = below(least);
    if (kind == MAXIMUM) return at_most(box, input, most, changed);
    if (one.positive) return at_most(box, input, largest_minuend(w, most), changed);
    return at_least(box, input, smallest_minuend(w, -most), changed);
  }

  Frame split(Box&& box) const {
    Frame frame{std::move(box), {}, LEAF, 0, 0};
    if (chosen < 0) return frame;
    const Kind kind = frame.kind = Kind(net.kinds[chosen_stage]);
    const float least = frame.demand = frame.box.low[chosen];
    for (long c = net.offsets[chosen]; c < net.offsets[chosen + 1]; ++c) {
      const float w = kind == DISTANCE ? net.weight[c] : 0.0f;
      const float up = frame.box.high[net.index[c]] - w, down = w - frame.box.low[net.index[c]];
      if (up >= least) frame.candidates.push_back({c, true, up});
      if (kind == DISTANCE && down >= least) frame.candidates.push_back({c, false, down});
    }
    std::stable_sort(frame.candidates.begin(), frame.candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.reach > b.reach; });
    return frame;
  }

  static bool exhausted(const Frame& frame) { return frame.next >= (frame.kind == LEAF ? 2 : frame.candidates.size()); }

  // Write the next branch of a frame to `box`; return false if there is none.
  bool take(Frame& frame, Box& box) const {
    bool changed = false;
    if (frame.kind == LEAF) {
      if (exhausted(frame)) return false;
      const std::int64_t first = order(frame.box.least), last = order(frame.box.most);
      const float half = number(first + (last - first) / 2);
      box = frame.box;
      if (frame.next++ == 0)
        box.least = above(half);
      else
        box.most = half;
      return true;
    }
    while (!exhausted(frame)) {
      const Candidate& one = frame.candidates[frame.next++];
      box = frame.box;
      const bool open = force(box, frame.kind, one, frame.demand, changed);
      // The branches after this one have no image in common with it.
      if (!exclude(frame.box, frame.kind, one, frame.demand, changed)) frame.next = frame.candidates.size();
      if (open) return true;
    }
    return false;
  }

  bool try_images(const Box& box, float* image) {
    for (int choice = 0; choice < 4; ++choice) {
      for (long p = 0; p < net.pixels; ++p) {
        const float low = box.low[p], high = box.high[p];
        const float wish = choice == 0 ? net.image[p] : choice == 1 ? low + (high - low) / 2 : choice == 2 ? low : high;
        values[p] = std::min(std::max(wish, low), high);
      }
      for (int s = 0; s < net.stages; ++s) {
        const Kind kind = Kind(net.kinds[s]);
        for (long n = net.starts[s]; n < net.starts[s + 1]; ++n) {
          float high;
          if (kind != LEAF)
            bounds(kind, n, values.data(), values.data(), values[n], high);
          else if (n >= net.pixels)
            values[n] = net.low[n];
        }
      }
      if (values[net.rival] >= values[net.own]) {
        std::copy(values.begin(), values.begin() + net.pixels, image);
        return true;
      }
    }
    return false;
  }
};

}  // namespace

Verdict search(const Query& query, float* image) { return Search(query).run(image); }

}  // namespace linfnet
