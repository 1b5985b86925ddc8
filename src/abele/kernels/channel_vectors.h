// Vectors whose lanes are neighbouring channels of one pixel of a channels-last image, and how sums over
// other channels lie in them.
#pragma once

#include <cstdint>
#include <cstring>

#include "calls.h"
#include "shuffle.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace abele::channels_last {

// Pixels of a row that are computed at once, the channels of the widest register, and how many of
// eight channels there are.
#if defined(__AVX512F__)
constexpr int PIXELS = 16, WIDEST = 16, REGISTERS = 32;
#else
constexpr int PIXELS = 8, WIDEST = 8, REGISTERS = 16;
#endif

template <int V>
struct Lanes {
  typedef float Type __attribute__((vector_size(V * sizeof(float)), aligned(4), may_alias));
};
template <int V>
using Vec = typename Lanes<V>::Type;

template <int V>
inline Vec<V> load(const float* from) {
  return *reinterpret_cast<const Vec<V>*>(from);
}
template <int V>
inline void store(float* to, Vec<V> value) {
  *reinterpret_cast<Vec<V>*>(to) = value;
}

// A register of sums: OUTPUTS channels of a pixel, each times INPUTS others that are summed apart.
// `spread` reads what a pixel has of these, for all lanes; lane v * INPUTS + j meets input j.
template <int V>
struct Whole {
  static constexpr int LANES = V, OUTPUTS = V, INPUTS = 1;
  static Vec<V> spread(const float* inputs) { return *inputs - Vec<V>{}; }
  static Vec<V> outputs(const float* from) { return load<V>(from); }
};

#if defined(__AVX512F__)
// Eight channels fill a register of sixteen with two inputs.
struct Pairs {
  static constexpr int LANES = 16, OUTPUTS = 8, INPUTS = 2;
  using Wide = int64_t __attribute__((vector_size(64)));
  using Places = int32_t __attribute__((vector_size(64)));
  static Vec<16> spread(const float* inputs) {
    int64_t two;
    std::memcpy(&two, inputs, sizeof two);
    const Wide all = two - Wide{};
    Vec<16> result;
    std::memcpy(&result, &all, sizeof result);
    return result;
  }
  // Each twice.
  static Vec<16> outputs(const float* from) {
    const Vec<16> value = (Vec<16>)_mm512_castps256_ps512(_mm256_loadu_ps(from));
    return ABELE_SHUFFLE(Places, value, value, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  }
  // The sums over the inputs of two pixels, eight of the first before eight of the second.
  static Vec<16> joined(Vec<16> a, Vec<16> b) {
    return ABELE_SHUFFLE(Places, a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           ABELE_SHUFFLE(Places, a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  }
};
#else
using Pairs = Whole<8>;
#endif

// Whether sums of so many channels take halves of registers that pairs would fill.
inline bool suits_pairs(Index outputs, Index inputs) {
  return WIDEST == 16 && outputs % 16 == 8 && inputs % Pairs::INPUTS == 0;
}

}  // namespace abele::channels_last
