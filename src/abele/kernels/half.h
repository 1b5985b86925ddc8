// Numbers of 16 bits in memory. Loops compute with float and round each result, as torch does.
//
// Integer arithmetic without branches is vector code on any processor; subnormal halves are right
// where subnormal floats are flushed to zero. Copies name the member: others are no vector code.
#pragma once

#include "math.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace abele {

ABELE_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
// Conditional expressions would not all become vector code.
ABELE_INLINE uint32_t pick(bool first, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(first);
  return b ^ ((a ^ b) & mask);
}
ABELE_INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

struct Half {
  uint16_t bits;
  ABELE_INLINE Half(const Half& other) : bits(other.bits) {}
  ABELE_INLINE void operator=(const Half& other) { bits = other.bits; }
  ABELE_INLINE Half(float x) {
    const Rounding to(x);
    // Halves between two powers of two follow each other, as do sums with the unit; NaN loses its digits.
    const uint32_t digits = bits_of(to.sum) - bits_of(to.unit) + ((to.exponent - LEAST) >> 13);
    bits = static_cast<uint16_t>(pick(x != x, 0x7e00, digits) | (bits_of(x) >> 16 & 0x8000));
  }
  ABELE_INLINE operator float() const {
    const uint32_t size = (bits & 0x7fffu) << 13;
    // A subnormal is 2^-14 (1 + digits) - 2^-14. Others have 112 added to the exponent by way of 224,
    // where infinity and NaN are those of a float.
    const uint32_t small = bits_of(float_of(size + LEAST) - float_of(LEAST));
    const uint32_t normal = bits_of(float_of(size + (224u << 23)) * float_of(15u << 23));
    return float_of(pick(size < (1u << 23), small, normal) | (bits & 0x8000u) << 16);
  }

  // A float that is rounded to half and becomes a float again, without its half in between.
  ABELE_INLINE static float rounded(float x) {
    const Rounding to(x);
    const float size = to.sum - to.unit;
    const uint32_t finite = pick(size > 65504.0f, 0x7f800000, bits_of(size));
    return float_of(pick(x != x, bits_of(x), finite | (bits_of(x) & 0x80000000)));
  }

 private:
  static constexpr uint32_t LEAST = 113u << 23;  // the exponent of the smallest normal half
  // The size of a float, at most 2^16, plus a power of two whose last digit is that of the half:
  // the sum rounds as the half does.
  struct Rounding {
    uint32_t exponent;
    float unit, sum;
    ABELE_INLINE Rounding(float x) {
      const uint32_t all = bits_of(x) & 0x7fffffff, size = all < 0x47800000 ? all : 0x47800000;
      const uint32_t power = size & 0x7f800000;
      exponent = power > LEAST ? power : LEAST;
      unit = float_of(exponent + (13u << 23));
      sum = float_of(size) + unit;
    }
  };
};

struct Bfloat {
  uint16_t bits;
  ABELE_INLINE Bfloat(const Bfloat& other) : bits(other.bits) {}
  ABELE_INLINE void operator=(const Bfloat& other) { bits = other.bits; }
  ABELE_INLINE Bfloat(float x) {
    const uint32_t all = bits_of(x), rounded = (all + 0x7fff + (all >> 16 & 1)) >> 16;
    bits = static_cast<uint16_t>(pick(x != x, 0x7fc0, rounded));
  }
  ABELE_INLINE operator float() const { return float_of(static_cast<uint32_t>(bits) << 16); }
  ABELE_INLINE static float rounded(float x) { return Bfloat(x); }
};

// -- many numbers at a time -----------------------------------------------------------------------

template <int lanes>
struct Words {
  typedef uint16_t Narrow __attribute__((vector_size(2 * lanes), aligned(2), may_alias));
  typedef uint32_t Wide __attribute__((vector_size(4 * lanes)));
};
// A register of floats from bfloat16 numbers, and the way back; they need not be aligned. GCC converts
// halves of the longest registers one by one.
template <class Floats, class Bits = Words<sizeof(Floats) / sizeof(float)>>
inline Floats load_bfloats(const void* from) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Floats) == 64)
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(*static_cast<const __m256i_u*>(from)), 16);
#endif
  const typename Bits::Narrow bits = *static_cast<const typename Bits::Narrow*>(from);
  return (Floats)(__builtin_convertvector(bits, typename Bits::Wide) << 16);
}
template <class Floats, class Bits = Words<sizeof(Floats) / sizeof(float)>>
inline void store_bfloats(void* to, Floats value) {
  using Narrow = typename Bits::Narrow;
  using Wide = typename Bits::Wide;
  const Wide all = (Wide)value, rounded = (all + 0x7fff + (all >> 16 & 1)) >> 16;
  const Wide bits = value == value ? rounded : 0x7fc0 - Wide{};
#if defined(__AVX512F__)
  if constexpr (sizeof(Floats) == 64)
    *static_cast<__m256i_u*>(to) = _mm512_cvtepi32_epi16((__m512i)bits);
  else
#endif
    *static_cast<Narrow*>(to) = __builtin_convertvector(bits, Narrow);
}

template <class T>
inline void widen(const void* from, Index count, float* to) {
  const T* values = static_cast<const T*>(from);
  for (Index i = 0; i < count; ++i) to[i] = static_cast<float>(values[i]);
}
template <class T>
inline void narrow(const float* from, Index count, void* to) {
  T* values = static_cast<T*>(to);
  for (Index i = 0; i < count; ++i) values[i] = T(from[i]);
}
// Rounds to T and back.
template <class T>
inline void round_all(const float* from, Index count, float* to) {
  for (Index i = 0; i < count; ++i) to[i] = T::rounded(from[i]);
}

// One instruction of the processor does what a loop needs ten for.
#if defined(__F16C__)
template <>
inline void widen<Half>(const void* from, Index count, float* to) {
  const uint16_t* values = static_cast<const uint16_t*>(from);
  Index i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i));
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(halves));
  }
#endif
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  for (; i < count; ++i) to[i] = _cvtsh_ss(values[i]);
}
template <>
inline void narrow<Half>(const float* from, Index count, void* to) {
  uint16_t* values = static_cast<uint16_t*>(to);
  Index i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + i), halves);
  }
  for (; i < count; ++i) values[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
}
template <>
inline void round_all<Half>(const float* from, Index count, float* to) {
  Index i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  for (; i < count; ++i) to[i] = Half::rounded(from[i]);
}
#endif

}  // namespace abele
