// Functions of one or two numbers that have more than one formula. Whoever includes this has
// ABELE_INLINE, exp, expm1, log, log1p, sigmoid, tanh, maximum and minimum; GPUs have others than
// processors.
#pragma once

namespace abele {

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
template <class T>
ABELE_INLINE T hard_sigmoid(T x) { return minimum(maximum(x + T(3), T(0)), T(6)) / T(6); }
template <class T>
ABELE_INLINE T hard_swish_backward(T grad, T x) {
  return x <= T(-3) ? T(0) : x >= T(3) ? grad : grad * (x / T(3) + T(0.5));
}
template <class T>
ABELE_INLINE T mish(T x) { return x * tanh(log1p(exp(x))); }
template <class T>
ABELE_INLINE T mish_backward(T grad, T x) {
  const T t = tanh(log1p(exp(x)));
  return grad * (t + x * sigmoid(x) * (T(1) - t * t));
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
