// Functions of one or two numbers that have more than one formula.
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

// Integers that leave their type come back at its other end, as in torch. Of types with a sign C++
// says nothing then, and compilers take it that it never happens.
template <class T>
struct Unsigned {
  using Type = T;
};
template <>
struct Unsigned<int32_t> {
  using Type = uint32_t;
};
template <>
struct Unsigned<int64_t> {
  using Type = uint64_t;
};
template <class T>
ABELE_INLINE T whole_sum(T a, T b) {
  using U = typename Unsigned<T>::Type;
  return T(U(a) + U(b));
}
template <class T>
ABELE_INLINE T whole_difference(T a, T b) {
  using U = typename Unsigned<T>::Type;
  return T(U(a) - U(b));
}
template <class T>
ABELE_INLINE T whole_product(T a, T b) {
  using U = typename Unsigned<T>::Type;
  return T(U(a) * U(b));
}

template <class T>
ABELE_INLINE T magnitude(T x) { return x < T(0) ? whole_difference(T(0), x) : x; }
ABELE_INLINE float magnitude(float x) { return std::fabs(x); }
ABELE_INLINE double magnitude(double x) { return std::fabs(x); }
template <class T>
ABELE_INLINE T sign(T x) { return T((T(0) < x) - (x < T(0))); }

// The result of a division that is rounded down, as Python has it; with 0 as divisor a / b.
template <class T>
ABELE_INLINE T floor_divide(T a, T b) {
  const T rest = std::fmod(a, b);
  T quotient = (a - rest) / b;
  quotient -= rest != T(0) && (b < T(0)) != (rest < T(0)) ? T(1) : T(0);
  T floor = std::floor(quotient);
  floor += quotient - floor > T(0.5) ? T(1) : T(0);
  floor = quotient != T(0) ? floor : std::copysign(T(0), a / b);
  return b == T(0) ? a / b : floor;
}
// Its remainder, which has the sign of the divisor.
template <class T>
ABELE_INLINE T remainder(T a, T b) {
  const T rest = std::fmod(a, b);
  return rest != T(0) && (b < T(0)) != (rest < T(0)) ? rest + b : rest;
}
// The same of integers; b is neither 0 nor -1.
template <class T>
ABELE_INLINE T whole_remainder(T a, T b) {
  const T rest = a % b;
  return rest != 0 && (b < 0) != (rest < 0) ? T(rest + b) : rest;
}
template <class T>
ABELE_INLINE T whole_floor_divide(T a, T b) {
  const T rest = a % b;
  return T(a / b - (rest != 0 && (b < 0) != (rest < 0)));
}

template <class T>
ABELE_INLINE T elu(T x, T negative, T positive, T inner) {
  return x <= T(0) ? expm1(x * inner) * negative : x * positive;
}
template <class T>
ABELE_INLINE T softplus(T x, T beta, T threshold) {
  return x * beta > threshold ? x : log1p(exp(x * beta)) / beta;
}
template <class T>
ABELE_INLINE T softplus_backward(T grad, T x, T beta, T threshold) {
  const T z = exp(x * beta);
  return x * beta > threshold ? grad : grad * z / (z + T(1));
}
template <class T>
ABELE_INLINE T log_sigmoid(T x) { return minimum(x, T(0)) - log1p(exp(-std::fabs(x))); }
template <class T>
ABELE_INLINE T log_sigmoid_backward(T grad, T x, T z) {
  const T part = z / (T(1) + z);
  return grad * (x < T(0) ? T(1) - part : part);
}
template <class T>
ABELE_INLINE T silu_backward(T grad, T x) {
  const T s = sigmoid(x);
  return grad * s * (T(1) + x * (T(1) - s));
}
// The gradient of b in a sigmoid(b).
template <class T>
ABELE_INLINE T gate_backward(T grad, T a, T b) {
  const T s = sigmoid(b);
  return grad * a * s * (T(1) - s);
}
template <class T>
ABELE_INLINE T hard_sigmoid(T x) { return minimum(maximum(x + T(3), T(0)), T(6)) / T(6); }
template <class T>
ABELE_INLINE T hard_swish_backward(T grad, T x) {
  return x <= T(-3) ? T(0) : x < T(3) ? grad * (x / T(3) + T(0.5)) : grad;
}
template <class T>
ABELE_INLINE T mish(T x) { return x * tanh(log1p(exp(x))); }
template <class T>
ABELE_INLINE T mish_backward(T grad, T x) {
  const T t = tanh(log1p(exp(x)));
  return grad * (t + x * sigmoid(x) * (T(1) - t * t));
}
template <class T>
ABELE_INLINE T log_add_exp(T a, T b) {
  const T largest = maximum(a, b);
  const bool same = std::fabs(a) == std::numeric_limits<T>::infinity() && a == b;
  return same ? a : largest + log1p(exp(-std::fabs(a - b)));
}
template <class T>
ABELE_INLINE T x_log_y(T x, T y) {
  const T plain = x * log(y);
  return y != y ? y : x == T(0) ? T(0) : plain;
}
// Binary cross entropy of a probability; logarithms end at -100.
template <class T>
ABELE_INLINE T cross_entropy(T x, T y) {
  return (y - T(1)) * maximum(log1p(-x), T(-100)) - y * maximum(log(x), T(-100));
}

}  // namespace abele
