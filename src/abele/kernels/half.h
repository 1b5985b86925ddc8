// Numbers of 16 bits in memory. Loops compute with float and round each result, as torch does.
//
// Integer arithmetic without branches is vector code on any processor; subnormal halves are right
// where subnormal floats are flushed to zero. Copies name the member: others are no vector code.
#pragma once

#include "math.h"

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
    const uint32_t all = bits_of(x), size = all & 0x7fffffff;
    // Adding 0.5 rounds to multiples of the smallest half; NaN and infinity lose their digits.
    const uint32_t small = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
    const uint32_t normal = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
    const uint32_t large = pick(size > 0x7f800000, 0x7e00, 0x7c00);
    const uint32_t finite = pick(size < (113u << 23), small, normal);
    bits = static_cast<uint16_t>(pick(size < 0x477ff000, finite, large) | (all >> 16 & 0x8000));
  }
  ABELE_INLINE operator float() const {
    const uint32_t size = (bits & 0x7fffu) << 13, exponent = size & (31u << 23);
    // A subnormal is 2^-14 (1 + digits) - 2^-14.
    const uint32_t small = bits_of(float_of(size + (113u << 23)) - float_of(113u << 23));
    const uint32_t normal = size + (pick(exponent == 31u << 23, 224, 112) << 23);
    return float_of(pick(exponent == 0, small, normal) | (bits & 0x8000u) << 16);
  }
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
};

}  // namespace abele
