// Products of bfloat16 numbers with sums of float32: one instruction of a processor with AVX512-BF16.
//
// Two numbers that are neighbours along the inner dimension are a pair, in the bits of a float: matrices of
// pairs are packed and read by tiles as those of floats are. Where a compiler, or the processor, lacks
// the instruction, the same pairs are multiplied in float32.
#pragma once

#include "half.h"
#include "small_product.h"

#if defined(__AVX512F__) && defined(__x86_64__)
#define ABELE_DOTS __attribute__((target("avx512bf16")))
#endif

namespace abele {

// Numbers of a pair.
constexpr Index PAIR = 2;
using Bits = uint32_t __attribute__((may_alias));
using Bits16 = uint16_t __attribute__((may_alias));

// to[i] = the pair of first[i] and second[i]; without a second, it is zero.
inline void pair_rows(const void* first, const void* second, Index count, float* to) {
  const auto *a = static_cast<const Bits16*>(first), *b = static_cast<const Bits16*>(second);
  Bits* pairs = reinterpret_cast<Bits*>(to);
  if (b == nullptr)
    for (Index i = 0; i < count; ++i) pairs[i] = a[i];
  else
    for (Index i = 0; i < count; ++i) pairs[i] = a[i] | static_cast<uint32_t>(b[i]) << 16;
}

// c[rows, columns] (+)= a[rows, pairs] b[pairs, columns] for a tile, without the instruction.
[[gnu::noinline]] inline void plain_dots(bool in_rows, Index rows, Index columns, Index pairs,
                                         const float* a, Index a_step, const float* b,
                                         Index b_step, float* c, Index c_row, bool add) {
  for (Index i = 0; i < rows; ++i) {
    float sums[PRODUCT_COLUMNS] = {};
    for (Index p = 0; p < pairs; ++p) {
      const uint32_t left = bits_of(a[in_rows ? i * a_step + p : p * a_step + i]);
      const float low = float_of(left << 16), high = float_of(left & 0xffff0000);
      for (Index j = 0; j < columns; ++j) {
        const uint32_t right = bits_of(b[p * b_step + j]);
        sums[j] += high * float_of(right & 0xffff0000);
        sums[j] += low * float_of(right << 16);
      }
    }
    for (Index j = 0; j < columns; ++j)
      c[i * c_row + j] = add ? c[i * c_row + j] + sums[j] : sums[j];
  }
}
template <bool in_rows, int rows, int vectors>
void plain_dot_tile(Index pairs, const float* a, Index a_step, const float* b, Index b_step,
                    float* c, Index c_row, bool add) {
  plain_dots(in_rows, rows, vectors * LANES, pairs, a, a_step, b, b_step, c, c_row, add);
}
template <bool in_rows, int vectors, int... rows>
constexpr std::array<SmallTile, sizeof...(rows)> plain_dot_tiles(
    std::integer_sequence<int, rows...>) {
  return {&plain_dot_tile<in_rows, rows + 1, vectors>...};
}
constexpr SmallTiles PLAIN_DOT_TILES[] = {
    {plain_dot_tiles<false, 1>(ALL_ROWS), plain_dot_tiles<false, 2>(ALL_ROWS)},
    {plain_dot_tiles<true, 1>(ALL_ROWS), plain_dot_tiles<true, 2>(ALL_ROWS)}};

#if defined(ABELE_DOTS)
inline bool has_dots() {
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
}

template <bool in_rows, int rows, int vectors>
ABELE_DOTS void dot_tile(Index pairs, const float* a, Index a_step, const float* b, Index b_step,
                         float* c, Index c_row, bool add) {
  std::conditional_t<in_rows, ColumnOfRows<rows>, WholeColumn> column(a, a_step);
  __m512 sums[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[i][v] = _mm512_setzero_ps();
  for (Index p = 0; p < pairs; ++p) {
    __m512bh columns[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) columns[v] = (__m512bh)_mm512_loadu_ps(b + v * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      __m512 value = _mm512_set1_ps(column[i]);
      asm("" : "+v"(value));
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v)
        sums[i][v] = _mm512_dpbf16_ps(sums[i][v], (__m512bh)value, columns[v]);
    }
    column.next(), b += b_step;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      float* to = c + i * c_row + v * LANES;
      const __m512 sum = sums[i][v];
      _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sum) : sum);
    }
}

// Rounds float32 to bfloat16.
ABELE_DOTS inline void round_with_dots(const float* from, Index count, Bits16* to) {
  Index i = 0;
  for (; i + LANES <= count; i += LANES) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), (__m256i)rounded);
  }
  for (; i < count; ++i) to[i] = Bfloat(from[i]).bits;
}
template <bool in_rows, int vectors, int... rows>
constexpr std::array<SmallTile, sizeof...(rows)> dot_tiles(std::integer_sequence<int, rows...>) {
  return {&dot_tile<in_rows, rows + 1, vectors>...};
}
constexpr SmallTiles DOT_TILES[] = {{dot_tiles<false, 1>(ALL_ROWS), dot_tiles<false, 2>(ALL_ROWS)},
                                    {dot_tiles<true, 1>(ALL_ROWS), dot_tiles<true, 2>(ALL_ROWS)}};
#endif

// Tiles for small_block of matrices of pairs.
inline const SmallTiles* pair_tiles() {
#if defined(ABELE_DOTS)
  if (has_dots()) return DOT_TILES;
#endif
  return PLAIN_DOT_TILES;
}

inline void round_to_bfloat(const float* from, Index count, void* to) {
#if defined(ABELE_DOTS)
  if (has_dots()) return round_with_dots(from, count, static_cast<Bits16*>(to));
#endif
  narrow<Bfloat>(from, count, to);
}

}  // namespace abele
