// Functions of one number for loops that the compiler turns into vector code: no branches, no calls.
//
// The coefficients minimise the largest relative error over the stated interval (weighted least
// squares in double precision, Lawson's iteration). NaN stays NaN, infinities are those of libm.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

// A loop with a call in it is no vector code.
#define ABELE_INLINE inline __attribute__((always_inline))

namespace abele {

using Index = int64_t;

ABELE_INLINE float bits_to_float(int32_t bits) { return __builtin_bit_cast(float, bits); }

// 2^n p for n in -252..254: two factors, since one of them alone may be out of range.
ABELE_INLINE float scaled(float p, int32_t n) {
  const int32_t half = n >> 1;
  return p * bits_to_float((half + 127) << 23) * bits_to_float((n - half + 127) << 23);
}

// exp(r) - 1 = r + r^2 P(r) of r = x - n ln(2), |r| <= ln(2) / 2.
ABELE_INLINE float exp_rest(float x, float n) {
  float r = std::fmaf(n, -0.693145752f, x);
  r = std::fmaf(n, -1.42860677e-6f, r);
  float p = 0.0013813142f;
  p = std::fmaf(p, r, 0.0083694188f);
  p = std::fmaf(p, r, 0.041668456f);
  p = std::fmaf(p, r, 0.16666515f);
  p = std::fmaf(p, r, 0.49999994f);
  return std::fmaf(p * r, r, r);
}

// The same of x within the bounds of `exp`, and which n it is.
ABELE_INLINE float exp_reduced(float x, float& n) {
  n = std::nearbyintf(x * 1.44269504f);
  return exp_rest(x, n);
}

// At most 1 unit in the last place off.
ABELE_INLINE float exp(float x) {
  float bounded = x > 89.0f ? 89.0f : x, n;
  bounded = bounded < -104.0f ? -104.0f : bounded;
  const float p = exp_reduced(bounded, n) + 1.0f;
  return scaled(p, static_cast<int32_t>(n));
}
ABELE_INLINE double exp(double x) { return std::exp(x); }

// The same for x up to 88 in half as many instructions; 0 below -87, where `exp` is less than 2^-125.
ABELE_INLINE float exp_up_to_88(float x) {
  const float bounded = x < -87.0f ? -87.0f : x;
  // 1.5 2^23 + 127: the sum is rounded to a whole number, whose low bits are n + 127.
  constexpr float rounder = 12583039.0f;
  const float sum = std::fmaf(bounded, 1.44269504f, rounder);
  const float p = exp_rest(bounded, sum - rounder);
  const float scale = bits_to_float(__builtin_bit_cast(int32_t, sum) << 23);
  const float result = std::fmaf(p, scale, scale);
  return x < -87.0f ? 0.0f : result;
}
ABELE_INLINE double exp_up_to_88(double x) { return std::exp(x); }

ABELE_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
ABELE_INLINE double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// tanh(x) = x + x^3 P(x^2) below 0.63; beyond, from exp(2 |x|).
ABELE_INLINE float tanh(float x) {
  const float magnitude = std::fabs(x), s = x * x;
  float p = 0.0021180152f;
  p = std::fmaf(p, s, -0.0081506940f);
  p = std::fmaf(p, s, 0.021690153f);
  p = std::fmaf(p, s, -0.053944889f);
  p = std::fmaf(p, s, 0.13333191f);
  p = std::fmaf(p, s, -0.33333331f);
  const float small = std::fmaf(p * s, x, x);
  const float bounded = magnitude > 10.0f ? 10.0f : magnitude;
  const float large = 1.0f - 2.0f / (exp_up_to_88(bounded + bounded) + 1.0f);
  return std::copysign(magnitude < 0.63f ? small : large, x);
}
ABELE_INLINE double tanh(double x) { return std::tanh(x); }

// erf(x) = x + x P(x^2) below 0.94; beyond, 1 - exp(-x (1 + Q(x))), and 1 from 4 on.
ABELE_INLINE float erf(float x) {
  const float magnitude = std::fabs(x), s = x * x;
  float p = 8.1937768e-5f;
  p = std::fmaf(p, s, -8.0998766e-4f);
  p = std::fmaf(p, s, 0.0051971548f);
  p = std::fmaf(p, s, -0.026857791f);
  p = std::fmaf(p, s, 0.11283666f);
  p = std::fmaf(p, s, -0.37612632f);
  p = std::fmaf(p, s, 0.12837917f);
  const float small = std::fmaf(p, x, x);
  const float t = magnitude > 4.0f ? 4.0f : magnitude;
  float q = 1.0763360e-5f;
  q = std::fmaf(q, t, -3.1806147e-4f);
  q = std::fmaf(q, t, 0.0036229256f);
  q = std::fmaf(q, t, -0.023720199f);
  q = std::fmaf(q, t, 0.10618763f);
  q = std::fmaf(q, t, 0.63518149f);
  q = std::fmaf(q, t, 0.12864096f);
  const float large = 1.0f - exp_up_to_88(-std::fmaf(q, t, t));
  const float result = magnitude < 0.94f ? small : std::copysign(large, x);
  return x == x ? result : x;
}
ABELE_INLINE double erf(double x) { return std::erf(x); }

// The share of a normal distribution beyond |x|, and its density there without the factor
// 1 / sqrt(2 pi). exp(x^2 / 2) times the share is a polynomial of |x|, fitted up to 5.7 so that the
// share is at most 5e-9 off before rounding; further away it is less than that.
ABELE_INLINE float normal_rest(float x, float& density) {
  const float magnitude = std::fabs(x), t = magnitude > 5.7f ? 5.7f : magnitude;
  density = exp_up_to_88(-0.5f * x * x);
  float p = 5.9961842e-08f;
  p = std::fmaf(p, t, -1.637064e-06f);
  p = std::fmaf(p, t, 2.023076e-05f);
  p = std::fmaf(p, t, -0.00015173227f);
  p = std::fmaf(p, t, 0.00078668434f);
  p = std::fmaf(p, t, -0.0030719535f);
  p = std::fmaf(p, t, 0.0096859317f);
  p = std::fmaf(p, t, -0.026096288f);
  p = std::fmaf(p, t, 0.062280402f);
  p = std::fmaf(p, t, -0.13292414f);
  p = std::fmaf(p, t, 0.2499927f);
  p = std::fmaf(p, t, -0.39894196f);
  return std::fmaf(p, t, 0.5f) * density;
}

// The share below x.
ABELE_INLINE float normal_share(float x, float& density) {
  const float rest = normal_rest(x, density);
  return x < 0.0f ? rest : 1.0f - rest;
}
ABELE_INLINE double normal_share(double x, double& density) {
  density = std::exp(-0.5 * x * x);
  return 0.5 * (1.0 + std::erf(x * 0.70710678118654752));
}

// x times the share below x; x (1 - rest) is rounded once. From 20 on nothing is beyond x.
ABELE_INLINE float normal_gelu(float x) {
  float density;
  const float rest = normal_rest(x, density), factor = x > 20.0f ? 20.0f : x;
  return x < 0.0f ? x * rest : std::fmaf(-factor, rest, x);
}
ABELE_INLINE double normal_gelu(double x) {
  double density;
  return x * normal_share(x, density);
}

// With `tangent` the approximation by tanh, otherwise exact.
template <bool tangent, class T>
ABELE_INLINE T gelu(T x) {
  if (tangent) {
    const T inner = T(0.79788456080286536) * (x + T(0.044715) * x * x * x);
    return T(0.5) * x * (T(1) + tanh(inner));
  }
  return normal_gelu(x);
}
template <bool tangent, class T>
ABELE_INLINE T gelu_backward(T grad, T x) {
  if (tangent) {
    const T inner = T(0.79788456080286536) * (x + T(0.044715) * x * x * x);
    const T t = tanh(inner);
    const T slope = T(0.79788456080286536) * (T(1) + T(0.134145) * x * x);
    return grad * (T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * slope);
  }
  T density;
  const T share = normal_share(x, density);
  return grad * (share + x * density * T(0.39894228040143268));
}

}  // namespace abele

#include "bounds.h"
