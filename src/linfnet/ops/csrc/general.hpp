// Any finite p: the maximum first, then the sum of (|d| / max)^p.
//
// A term below 2^-c of the largest, c = 26 + log2(features) - log2(p), is left out: all that is left out changes y by
// less than 2^-26 of itself. Where few terms remain they are collected and only these are raised to the power; where
// many do, all are. Which of the two runs is decided from the data of a block alone.
#pragma once


#include "elementary.hpp"
#include "infinity.hpp"

namespace linfnet {
namespace {

constexpr int GROUP = 4;           // vectors examined at once for large terms
constexpr long SPARSE_SHARE = 10;  // collect while at most one term in so many is large
constexpr int DENSE_STREAK = 15;   // pairs taken densely before the next try to collect

struct General {
    float p, inverse_p, cut;
    double exact_p;

    General(double p, long features)
        : p(float(p)), inverse_p(float(1.0 / p)), exact_p(p) {
        const double c = 26.0 + __builtin_log2(double(features)) - __builtin_log2(p);
        cut = float(__builtin_exp2(-c / p));
    }
};

inline float sum_of(F a) {
    const F four[4] = {a, set1(0.0f), set1(0.0f), set1(0.0f)};
    float out[4];
    fold4<FoldSum>(four, out);
    return out[0];
}

inline float max_of(const float* x, const float* w, long count) {
    F best[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
    for (long k = 0; k < count; k += LANES)
        best[0] = StepMax::apply(best[0], distance_of(x + k, w + k, int(min_of(LANES, count - k))));
    float out[4];
    fold4<FoldMax>(best, out);
    return out[0];
}

// (|d| * shift * inverse)^p with the residue of the reciprocal put back.
struct Term {
    F shift, inverse, p, offset;

    LINFNET_INLINE Term(const Reciprocal& r, float p)
        : shift(set1(r.shift)), inverse(set1(r.inverse)), p(set1(p)), offset(set1(p * r.residue * 1.442695f)) {}

    LINFNET_INLINE F operator()(F size) const {
        return exp2_of(fma(p, log2_of_product(mul(size, shift), inverse), offset));
    }
};

inline float dense_sum(const float* x, const float* w, long count, const Term& term) {
    F total = set1(0.0f);
    for (long begin = 0; begin < count; begin += BLOCK_FEATURES) {
        const long end = min_of(count, begin + BLOCK_FEATURES);
        F part = set1(0.0f);
        for (long k = begin; k < end; k += LANES)
            part = add(part, term(distance_of(x + k, w + k, int(min_of(LANES, end - k)))));
        total = add(total, part);
    }
    return sum_of(total);
}

// The sizes |x - w| not below `cut`, packed into list; -1 as soon as there are more than `limit`.
inline long collect(const float* x, const float* w, long count, float cut, long limit, float* list) {
    const F bar = set1(cut);
    long found = 0;
    long k = 0;
    for (; k + GROUP * LANES <= count; k += GROUP * LANES) {
        F size[GROUP];
        for (int g = 0; g < GROUP; ++g) size[g] = abs(sub(load(x + k + g * LANES), load(w + k + g * LANES)));
        F top = size[0];
        for (int g = 1; g < GROUP; ++g) top = as_float(maxi(as_int(top), as_int(size[g])));
        if (!bits(not_less(top, bar))) continue;
        for (int g = 0; g < GROUP; ++g) found += pack(list + found, size[g], not_less(size[g], bar));
        if (found > limit) return -1;
    }
    for (; k < count; k += LANES) {
        const F size = distance_of(x + k, w + k, int(min_of(LANES, count - k)));
        found += pack(list + found, size, not_less(size, bar));
    }
    return found > limit ? -1 : found;
}

inline float sparse_sum(const float* list, long count, const Term& term) {
    F total = set1(0.0f);
    // The lanes beyond the end are zeros, whose power is at most 2^-126 of the largest term.
    for (long k = 0; k < count; k += LANES) total = add(total, term(load_part(list + k, int(min_of(LANES, count - k)))));
    return sum_of(total);
}

// The sum of (|d| / largest)^p of one pair, 0 < largest < infinity.
struct PairSum {
    const General& general;
    float* list;
    long features;
    int streak = 0;

    float operator()(const float* x, const float* w, float largest) {
        const Term term(Reciprocal(largest), general.p);
        if (streak > 0) {
            --streak;
            return dense_sum(x, w, features, term);
        }
        const long found = collect(x, w, features, largest * general.cut, features / SPARSE_SHARE, list);
        if (found >= 0) return sparse_sum(list, found, term);
        streak = DENSE_STREAK;
        return dense_sum(x, w, features, term);
    }
};

inline float* list_memory(long features) {
    return static_cast<float*>(scratch((features + (GROUP + 1) * LANES) * sizeof(float)));
}

// y from the maximum and the sum; where the maximum is 0, infinite or NaN, it is the distance.
LINFNET_INLINE F finish(F largest, F sum, const Root& root) {
    const Mask ordinary = within(largest, set1(0x1p-149f), set1(0x1.fffffep127f));
    return select(ordinary, root.times(largest, select(ordinary, sum, set1(1.0f))), largest);
}

// One pair by itself.
inline float pair_distance(const float* x, const float* w, const General& general, long features) {
    const float largest = max_of(x, w, features);
    float sum = 1.0f;
    if (largest > 0 && largest < __builtin_inff()) {
        PairSum pair{general, list_memory(features), features};
        sum = pair(x, w, largest);
    }
    float out[LANES];
    store(out, finish(set1(largest), set1(sum), Root(general.exact_p)));
    return out[0];
}

void general_power(const float* x, const float* w, float* y, const General& general, Shape shape) {
    const long in = shape.features;
    for_blocks(shape, [&](long row, long rows, long out, long outs) {
        const float* top = x + row * in;
        const float* left = w + out * in;
        alignas(64) float best[BLOCK_PAIRS] = {};
        alignas(64) float sums[BLOCK_OUTS];
        run_block<StepMax>(&top, left, rows, outs, in, [&](long, const float* p) { keep_largest(p, best); });
        PairSum pair{general, list_memory(in), in};
        const Root root(general.exact_p);
        for (long r = 0; r < rows; ++r) {
            const float* largest = best + r * BLOCK_OUTS;
            for (long o = 0; o < outs; ++o)
                sums[o] = largest[o] > 0 && largest[o] < __builtin_inff() ? pair(top + r * in, left + o * in, largest[o]) : 1.0f;
            float* target = y + (row + r) * shape.outs + out;
            by_vectors(outs, [&](long o, int n) { store_part(target + o, finish(load(largest + o), load(sums + o), root), n); });
        }
    });
}

}  // namespace
}  // namespace linfnet
