// Vectors whose lanes are samples of the batch, and the way from and to ordinary NCHW tensors.
//
// A block of LANES samples is kept as [C][H][W][LANES]: a register holds one pixel of all of them.
// Weights are then scalars to broadcast, and no channel count leaves a tail.
#pragma once

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "calls.h"
#include "half.h"
#include "shuffle.h"

// What depends on how many lanes there are is in a namespace of its own: conv_planes.cpp is compiled
// for whole registers and, with ABELE_HALF_REGISTERS, for halves of them.
#if defined(ABELE_HALF_REGISTERS)
#define ABELE_LENGTH half_registers
#else
#define ABELE_LENGTH whole_registers
#endif

namespace abele {
inline namespace ABELE_LENGTH {

// The array of make(0), make(1), ..., make(count - 1), whose arguments are known to the compiler.
template <class Make, int... i>
constexpr auto table_of(Make make, std::integer_sequence<int, i...>) {
  return std::array{make(std::integral_constant<int, i>())...};
}
template <int count, class Make>
constexpr auto table_of(Make make) {
  return table_of(make, std::make_integer_sequence<int, count>());
}

#if defined(ABELE_HALF_REGISTERS)
constexpr int LANES = 8, REGISTERS = 32;
#elif defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

using Vec = float __attribute__((vector_size(LANES * sizeof(float))));
// Compilers like to load an operand again for each use; this keeps it in its register.
inline void keep(Vec& v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
}

// For the only sum of a loop: compilers round each of its products by themselves on some processors, where
// a sum that does not seem to be that of the turn before is added to in one operation. Sums have the
// same bits whatever else is computed beside them.
template <int sums>
inline void keep_alone(Vec& sum) {
  if (sums == 1) keep(sum);
}

using Quad = float __attribute__((vector_size(16)));

inline Vec broadcast(float value) { return value - Vec{}; }

// Of memory that need not be aligned.
template <class T>
inline T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline Vec load(const float* from) { return load<Vec>(from); }
inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }
// Likewise of bfloat16 numbers.
inline Vec load(const uint16_t* from) { return load_bfloats<Vec>(from); }
inline void store(uint16_t* to, Vec value) { store_bfloats<Vec>(to, value); }

// The first `count` lanes, the others zero.
template <class T>
inline Vec load_some(const T* from, Index count) {
  T some[LANES] = {};
  std::memcpy(some, from, count * sizeof(T));
  return load(some);
}
template <class T>
inline void store_some(T* to, Vec value, Index count) {
  T some[LANES];
  store(some, value);
  std::memcpy(to, some, count * sizeof(T));
}

// A slope of 0 is exact: also an infinity below zero becomes 0.
inline Vec activated(Vec value, float slope) {
  const Vec below = slope == 0.0f ? Vec{} : value * slope;
  return value <= 0.0f ? below : value;
}

// A value between two bounds; a NaN stays one, as it is the second operand of these instructions.
inline Vec bounded(Vec value, Vec low, Vec high) {
#if defined(__AVX512F__) && !defined(ABELE_HALF_REGISTERS)
  return (Vec)_mm512_min_ps((__m512)high, _mm512_max_ps((__m512)low, (__m512)value));
#elif defined(__AVX__)
  return (Vec)_mm256_min_ps((__m256)high, _mm256_max_ps((__m256)low, (__m256)value));
#else
  value = value < low ? low : value;
  return value > high ? high : value;
#endif
}

inline Quad load_quad(const float* from) { return load<Quad>(from); }
inline void store_quad(float* to, Quad value) { std::memcpy(to, &value, sizeof value); }

using Places4 = int32_t __attribute__((vector_size(16)));

inline void transpose(Quad& a, Quad& b, Quad& c, Quad& d) {
  const Quad ab_low = ABELE_SHUFFLE(Places4, a, b, 0, 4, 1, 5);
  const Quad ab_high = ABELE_SHUFFLE(Places4, a, b, 2, 6, 3, 7);
  const Quad cd_low = ABELE_SHUFFLE(Places4, c, d, 0, 4, 1, 5);
  const Quad cd_high = ABELE_SHUFFLE(Places4, c, d, 2, 6, 3, 7);
  a = ABELE_SHUFFLE(Places4, ab_low, cd_low, 0, 1, 4, 5);
  b = ABELE_SHUFFLE(Places4, ab_low, cd_low, 2, 3, 6, 7);
  c = ABELE_SHUFFLE(Places4, ab_high, cd_high, 0, 1, 4, 5);
  d = ABELE_SHUFFLE(Places4, ab_high, cd_high, 2, 3, 6, 7);
}

#if defined(__AVX512F__) && !defined(ABELE_HALF_REGISTERS)
using Places16 = int32_t __attribute__((vector_size(64)));
// The places p, q, r, s of each quad, those of the second vector from 16 on; and whole quads.
#define ABELE_IN_QUADS(a, b, p, q, r, s)                                                         \
  ABELE_SHUFFLE(Places16, a, b, p, q, r, s, p + 4, q + 4, r + 4, s + 4, p + 8, q + 8, r + 8, s + 8, \
                p + 12, q + 12, r + 12, s + 12)
#define ABELE_QUADS(a, b, p, q, r, s)                                                               \
  ABELE_SHUFFLE(Places16, a, b, 4 * p, 4 * p + 1, 4 * p + 2, 4 * p + 3, 4 * q, 4 * q + 1, 4 * q + 2, \
                4 * q + 3, 4 * r, 4 * r + 1, 4 * r + 2, 4 * r + 3, 4 * s, 4 * s + 1, 4 * s + 2,   \
                4 * s + 3)

// Of each quad of four vectors.
inline void transpose(Vec& a, Vec& b, Vec& c, Vec& d) {
  const Vec ab_low = ABELE_IN_QUADS(a, b, 0, 16, 1, 17);
  const Vec ab_high = ABELE_IN_QUADS(a, b, 2, 18, 3, 19);
  const Vec cd_low = ABELE_IN_QUADS(c, d, 0, 16, 1, 17);
  const Vec cd_high = ABELE_IN_QUADS(c, d, 2, 18, 3, 19);
  a = ABELE_IN_QUADS(ab_low, cd_low, 0, 1, 16, 17);
  b = ABELE_IN_QUADS(ab_low, cd_low, 2, 3, 18, 19);
  c = ABELE_IN_QUADS(ab_high, cd_high, 0, 1, 16, 17);
  d = ABELE_IN_QUADS(ab_high, cd_high, 2, 3, 18, 19);
}

// Of a vector of quads for each of four.
inline void transpose_quads(Vec& a, Vec& b, Vec& c, Vec& d) {
  const Vec ab_low = ABELE_QUADS(a, b, 0, 1, 4, 5), ab_high = ABELE_QUADS(a, b, 2, 3, 6, 7);
  const Vec cd_low = ABELE_QUADS(c, d, 0, 1, 4, 5), cd_high = ABELE_QUADS(c, d, 2, 3, 6, 7);
  a = ABELE_QUADS(ab_low, cd_low, 0, 2, 4, 6), b = ABELE_QUADS(ab_low, cd_low, 1, 3, 5, 7);
  c = ABELE_QUADS(ab_high, cd_high, 0, 2, 4, 6), d = ABELE_QUADS(ab_high, cd_high, 1, 3, 5, 7);
}

// LANES rows become columns; each is read at once, since rows may lie a multiple of 4 KiB apart and
// then push each other out of the first-level cache.
inline void turn_lanes(const float* rows, Index step, float* to, Index width) {
  Vec v[LANES];
#pragma GCC unroll 16
  for (Index r = 0; r < LANES; ++r) v[r] = load(rows + r * step);
#pragma GCC unroll 4
  for (Index r = 0; r < LANES; r += 4) transpose(v[r], v[r + 1], v[r + 2], v[r + 3]);
#pragma GCC unroll 4
  for (Index p = 0; p < 4; ++p) {
    transpose_quads(v[p], v[p + 4], v[p + 8], v[p + 12]);
#pragma GCC unroll 4
    for (Index q = 0; q < 4; ++q) store(to + (4 * q + p) * width, v[p + 4 * q]);
  }
}
#undef ABELE_QUADS
#undef ABELE_IN_QUADS
#endif

// sums[i] = the sum of lanes of v[i], as a tree: the rounding must not be the compiler's choice. Eight
// lanes are summed by themselves, so that two threads with half a register each get the same bits.
inline void sum_lanes(const Vec* v, Index count, float* sums) {
  for (Index i = 0; i < count; i += 4) {
    Quad total = {};
    for (int first = 0; first < LANES; first += 8) {
      Quad quads[4] = {};
      for (Index k = 0; k < std::min<Index>(4, count - i); ++k) {
        const float* lanes = reinterpret_cast<const float*>(v + i + k);
        for (int s = first; s < std::min(first + 8, LANES); s += 4) quads[k] += load_quad(lanes + s);
      }
      transpose(quads[0], quads[1], quads[2], quads[3]);
      total += (quads[0] + quads[1]) + (quads[2] + quads[3]);
    }
    std::memcpy(sums + i, &total, std::min<Index>(4, count - i) * sizeof(float));
  }
}

// A cache line of each sample at a time: samples may lie a multiple of the cache's size apart.
constexpr Index LINE = 16;

// A line of as many samples as there are lanes becomes lanes, or lanes become lines, if registers hold one.
inline bool turned_whole([[maybe_unused]] const float* rows, [[maybe_unused]] Index step, Index valid,
                         Index count, [[maybe_unused]] float* to, [[maybe_unused]] Index width) {
  if (LANES != LINE || valid < LANES || count < LINE) return false;
#if defined(__AVX512F__) && !defined(ABELE_HALF_REGISTERS)
  turn_lanes(rows, step, to, width);
#endif
  return true;
}

// lanes[i][s] = samples[s * stride + i] for i < count; lanes without a sample become zero.
// Inlined, its loops are doubled for each condition of the loops around it: GCC takes 4 times as
// long for conv_planes.cpp then, and the code is no faster.
[[gnu::noinline]] inline void to_lanes(const float* samples, Index stride, Index valid,
                                       Index count, Vec* lanes) {
  float* to = reinterpret_cast<float*>(lanes);
  for (Index line = 0; line < count; line += LINE) {
    const Index end = std::min(line + LINE, count);
    if (turned_whole(samples + line, stride, valid, end - line, to + line * LANES, LANES)) continue;
    for (Index s = 0; s < LANES; s += 4) {
      const float* from = samples + s * stride;
      Index i = line;
      for (; s + 4 <= valid && i + 4 <= end; i += 4) {
        Quad a = load_quad(from + i), b = load_quad(from + stride + i);
        Quad c = load_quad(from + 2 * stride + i), d = load_quad(from + 3 * stride + i);
        transpose(a, b, c, d);
        float* out = to + i * LANES + s;
        store_quad(out, a), store_quad(out + LANES, b);
        store_quad(out + 2 * LANES, c), store_quad(out + 3 * LANES, d);
      }
      for (; i < end; ++i)
        for (Index k = 0; k < 4; ++k)
          to[i * LANES + s + k] = s + k < valid ? from[k * stride + i] : 0.0f;
    }
  }
}

// The way back; lanes without a sample are dropped.
inline void from_lanes(const Vec* lanes, Index count, float* samples, Index stride, Index valid) {
  const float* from = reinterpret_cast<const float*>(lanes);
  for (Index line = 0; line < count; line += LINE) {
    const Index end = std::min(line + LINE, count);
    if (turned_whole(from + line * LANES, LANES, valid, end - line, samples + line, stride)) continue;
    for (Index s = 0; s < valid; s += 4) {
      float* to = samples + s * stride;
      Index i = line;
      for (; s + 4 <= valid && i + 4 <= end; i += 4) {
        const float* in = from + i * LANES + s;
        Quad a = load_quad(in), b = load_quad(in + LANES);
        Quad c = load_quad(in + 2 * LANES), d = load_quad(in + 3 * LANES);
        transpose(a, b, c, d);
        store_quad(to + i, a), store_quad(to + stride + i, b);
        store_quad(to + 2 * stride + i, c), store_quad(to + 3 * stride + i, d);
      }
      for (; i < end; ++i)
        for (Index k = 0; k < 4 && s + k < valid; ++k)
          to[k * stride + i] = from[i * LANES + s + k];
    }
  }
}

}  // namespace ABELE_LENGTH
}  // namespace abele
