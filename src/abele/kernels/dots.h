// Products of bfloat16 numbers with sums of float32: one instruction of a processor with AVX512-BF16.
//
// Two numbers that are neighbours along the inner dimension are a pair, in the bits of a float: matrices of
// pairs are packed and read by tiles as those of floats are. Where a compiler, or the processor, lacks
// the instruction, the same pairs are multiplied in float32.
#pragma once

#include "half.h"
#include "small_product.h"

namespace abele {

// Numbers of a pair.
constexpr Index PAIR = 2;
using Bits = uint32_t __attribute__((may_alias));
using Bits16 = uint16_t __attribute__((may_alias));

// to[i] = the pair of first[i] and second[i]; without a second, it is zero.
inline void pair_rows(const void* first, const void* second, Index count, float* to) {
  const auto *a = static_cast<const Bits16*>(first), *b = static_cast<const Bits16*>(second);
  Bits* pairs = reinterpret_cast<Bits*>(to);
  for (Index i = 0; i < count; ++i)
    pairs[i] = a[i] | (b == nullptr ? 0 : static_cast<uint32_t>(b[i])) << 16;
}

// Sums of the products of pairs, and their rounding, without the instruction. See ``Floats`` of tiles.h.
struct PlainDots {
  using Words = uint32_t __attribute__((vector_size(sizeof(Vec))));
  static void add(Vec& sum, Vec value, Vec column) {
    const Words left = (Words)value, right = (Words)column, high = Words{} + 0xffff0000;
    sum += (Vec)(left & high) * (Vec)(right & high);
    sum += (Vec)(left << 16) * (Vec)(right << 16);
  }
  static void round(Vec sum, Bits16* to) {
    for (int i = 0; i < LANES; ++i) to[i] = Bfloat(sum[i]).bits;
  }
};

// The same with it. Compilers would not inline functions of other processors.
#if defined(__AVX512F__) && defined(__x86_64__)
struct Dots {
  static void add(Vec& sum, Vec value, Vec column) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(value), "v"(column));
  }
  static void round(Vec sum, Bits16* to) {
    __m256i rounded;
    asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(sum));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
  }
};
inline bool has_dots() {
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
}
#else
using Dots = PlainDots;
inline bool has_dots() { return false; }
#endif

// Tiles for small_block of matrices of pairs.
inline const SmallTiles* pair_tiles() {
  return has_dots() ? SMALL_TILES<Dots> : SMALL_TILES<PlainDots>;
}

inline void round_to_bfloat(const float* from, Index count, void* to) {
  Bits16* rounded = static_cast<Bits16*>(to);
  Index i = 0;
  for (; has_dots() && i + LANES <= count; i += LANES) Dots::round(load(from + i), rounded + i);
  narrow<Bfloat>(from + i, count - i, rounded + i);
}

}  // namespace abele
