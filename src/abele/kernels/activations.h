// Logarithms and exp(x) - 1 for loops that the compiler turns into vector code.
#pragma once

#include "math.h"

namespace abele {

// exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1); the power is halved, since 2^128 is no float.
ABELE_INLINE float expm1(float x) {
  float bounded = x > 89.0f ? 89.0f : x, n;
  bounded = bounded < -30.0f ? -30.0f : bounded;
  const float p = exp_reduced(bounded, n);
  const float half = bits_to_float((static_cast<int32_t>(n) + 126) << 23);
  const float result = 2.0f * std::fmaf(p, half, half - 0.5f);
  return x == 0.0f ? x : result;
}
ABELE_INLINE double expm1(double x) { return std::expm1(x); }

// log(1 + f) for 1 / sqrt(2) <= 1 + f <= sqrt(2): twice the series of artanh(s), s = f / (2 + f).
ABELE_INLINE float log_near_one(float f) {
  const float s = f / (2.0f + f), square = s * s;
  float p = 0.22222222f;
  p = std::fmaf(p, square, 0.28571429f);
  p = std::fmaf(p, square, 0.4f);
  p = std::fmaf(p, square, 0.66666667f) * square;
  return f - s * (f - p);
}

// Of u > 0 and normal: the exponent e and f with u = 2^e (1 + f).
ABELE_INLINE float reduced(float u, float& f) {
  const int32_t bits = __builtin_bit_cast(int32_t, u);
  const int32_t e = (bits - 0x3f3504f3) >> 23;
  f = bits_to_float(bits - (e << 23)) - 1.0f;
  return static_cast<float>(e);
}

// As libm has them at 0, below, and at infinity.
ABELE_INLINE float log_ends(float u, float result) {
  const float infinity = std::numeric_limits<float>::infinity();
  result = u == 0.0f ? -infinity : result;
  result = u < 0.0f ? std::numeric_limits<float>::quiet_NaN() : result;
  return (u == infinity) | (u != u) ? u : result;
}

ABELE_INLINE float log(float x) {
  const bool small = x < std::numeric_limits<float>::min();
  float f;
  const float e = reduced(small ? x * 8388608.0f : x, f) - (small ? 23.0f : 0.0f);
  const float result = std::fmaf(e, 0.693145752f, std::fmaf(e, 1.42860677e-6f, log_near_one(f)));
  return log_ends(x, result);
}
ABELE_INLINE double log(double x) { return std::log(x); }

// What 1 + x loses by rounding is added to first order.
ABELE_INLINE float log1p(float x) {
  const float u = 1.0f + x;
  float f;
  const float e = reduced(u, f), lost = (x - (u - 1.0f)) / u;
  f = e == 0.0f ? x : f;
  const float low = std::fmaf(e, 1.42860677e-6f, e == 0.0f ? 0.0f : lost);
  const float result = std::fmaf(e, 0.693145752f, log_near_one(f) + low);
  return x == 0.0f ? x : log_ends(u, result);
}
ABELE_INLINE double log1p(double x) { return std::log1p(x); }

}  // namespace abele

#include "functions.h"
