// The larger and the smaller of two numbers, as torch has them. Whoever includes this has
// ABELE_INLINE: one for processors, one for GPUs.
#pragma once

namespace abele {

// NaN of either operand is the result.
template <class T>
ABELE_INLINE T maximum(T a, T b) { return (a != a) | (a > b) ? a : b; }
template <class T>
ABELE_INLINE T minimum(T a, T b) { return (a != a) | (a < b) ? a : b; }
// Of equal zeros the number's sign stays, and a NaN of either stays.
template <class T>
ABELE_INLINE T not_below(T x, T low) { return (x < low) | (low != low) ? low : x; }
template <class T>
ABELE_INLINE T not_above(T x, T high) { return (x > high) | (high != high) ? high : x; }
template <class T>
ABELE_INLINE T relu(T x) { return x < T(0) ? T(0) : x; }

}  // namespace abele
