// Vectors whose lanes are neighbouring channels of one pixel of a channels-last image.
#pragma once

#include "calls.h"

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

}  // namespace abele::channels_last
