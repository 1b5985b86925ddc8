// What expressions of elementwise operators call on a GPU, and how a block finds its elements.
//
// Functions of single numbers are CUDA's own, which plain PyTorch calls too.
#pragma once

#ifndef ABELE_ON_HOST  // tests compile kernels for the host, with what it has
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define NAN __int_as_float(0x7fffffff)

namespace std {
template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static __device__ float infinity() { return __int_as_float(0x7f800000); }
  static __device__ float quiet_NaN() { return __int_as_float(0x7fffffff); }
};
template <>
struct numeric_limits<double> {
  static __device__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }
  static __device__ double quiet_NaN() { return __longlong_as_double(0x7fffffffffffffffll); }
};
#define ABELE_OF_ONE(name)                                        \
  static __device__ float name(float x) { return ::name##f(x); }  \
  static __device__ double name(double x) { return ::name(x); }
#define ABELE_OF_TWO(name)                                                          \
  static __device__ float name(float x, float y) { return ::name##f(x, y); }        \
  static __device__ double name(double x, double y) { return ::name(x, y); }
ABELE_OF_ONE(fabs) ABELE_OF_ONE(sqrt) ABELE_OF_ONE(floor) ABELE_OF_ONE(ceil) ABELE_OF_ONE(trunc)
ABELE_OF_ONE(sin) ABELE_OF_ONE(cos) ABELE_OF_ONE(tan) ABELE_OF_ONE(asin) ABELE_OF_ONE(acos)
ABELE_OF_ONE(atan) ABELE_OF_ONE(sinh) ABELE_OF_ONE(cosh) ABELE_OF_ONE(asinh) ABELE_OF_ONE(acosh)
ABELE_OF_ONE(atanh) ABELE_OF_ONE(exp2) ABELE_OF_ONE(log2) ABELE_OF_ONE(log10) ABELE_OF_ONE(erfc)
ABELE_OF_ONE(nearbyint) ABELE_OF_TWO(pow) ABELE_OF_TWO(fmod) ABELE_OF_TWO(copysign)
ABELE_OF_TWO(fmax) ABELE_OF_TWO(fmin) ABELE_OF_TWO(atan2) ABELE_OF_TWO(hypot)
template <class T>
static __device__ bool signbit(T x) { return x < 0; }  // of whole numbers
static __device__ bool signbit(float x) { return __float_as_int(x) < 0; }
static __device__ bool signbit(double x) { return __double_as_longlong(x) < 0; }
}  // namespace std
#endif

#define ABELE_INLINE static __device__ __forceinline__
#include "bounds.h"

namespace abele {

// Numbers of 16 bits in memory. Loops compute with float and round each result, as torch does.
struct Half {
#ifdef ABELE_ON_HOST
  _Float16 value;
  Half(float x) : value(x) {}
  operator float() const { return value; }
#else
  unsigned short bits;
  __device__ Half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  __device__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
#endif
};
struct Bfloat {
  unsigned short bits;
  __device__ Bfloat(float x) {
    const unsigned all = bits_of(x);
    bits = x != x ? 0x7fc0 : (all + 0x7fff + (all >> 16 & 1)) >> 16;
  }
  __device__ operator float() const { return float_of(unsigned(bits) << 16); }

 private:
#ifdef ABELE_ON_HOST
  static unsigned bits_of(float x) { return __builtin_bit_cast(unsigned, x); }
  static float float_of(unsigned x) { return __builtin_bit_cast(float, x); }
#else
  static __device__ unsigned bits_of(float x) { return __float_as_uint(x); }
  static __device__ float float_of(unsigned x) { return __uint_as_float(x); }
#endif
};

#define ABELE_OF_ONE_HERE(name)                               \
  ABELE_INLINE float name(float x) { return ::name##f(x); }   \
  ABELE_INLINE double name(double x) { return ::name(x); }
ABELE_OF_ONE_HERE(exp) ABELE_OF_ONE_HERE(expm1) ABELE_OF_ONE_HERE(log) ABELE_OF_ONE_HERE(log1p)
ABELE_OF_ONE_HERE(tanh) ABELE_OF_ONE_HERE(erf)

template <class T>
ABELE_INLINE T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }

// With `tangent` the approximation by tanh, otherwise exact.
template <bool tangent, class T>
ABELE_INLINE T gelu(T x) {
  if (tangent) {
    const T inner = T(0.79788456080286536) * (x + T(0.044715) * x * x * x);
    return T(0.5) * x * (T(1) + tanh(inner));
  }
  return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752)));
}
template <bool tangent, class T>
ABELE_INLINE T gelu_backward(T grad, T x) {
  if (tangent) {
    const T inner = T(0.79788456080286536) * (x + T(0.044715) * x * x * x);
    const T t = tanh(inner);
    const T slope = T(0.79788456080286536) * (T(1) + T(0.134145) * x * x);
    return grad * (T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * slope);
  }
  const T share = T(0.5) * (T(1) + erf(x * T(0.70710678118654752)));
  return grad * (share + x * exp(T(-0.5) * x * x) * T(0.39894228040143268));
}

// Addresses of all tensors that a launch reads and writes.
template <int count>
struct Pointers {
  void* at[count];
};

constexpr unsigned threads = 256;

// Calls body(i) for the elements of one block, each thread for `each` of them.
template <unsigned each, class Body>
ABELE_INLINE void elements(unsigned block, int64_t size, Body body) {
  int64_t i = int64_t(block) * (threads * each) + threadIdx.x;
#pragma unroll
  for (unsigned turn = 0; turn < each; ++turn, i += threads)
    if (i < size) body(i);
}

// The sums of 8 columns of a matrix: 32 threads for each add every 32nd row.
ABELE_INLINE void column_sums(unsigned block, int64_t rows, int64_t columns, int64_t step,
                              const float* x, float* y) {
  const unsigned place = threadIdx.x % 8, lane = threadIdx.x / 8;
  const int64_t column = int64_t(block) * 8 + place;
  float sum = 0;
#ifdef ABELE_ON_HOST
  if (lane == 0 && column < columns) {
    for (int64_t row = 0; row < rows; ++row) sum += x[row * step + column];
    y[column] = sum;
  }
#else
  __shared__ float sums[32][8];
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = lane; row < rows; row += 32) sum += x[row * step + column];
  }
  sums[lane][place] = sum;
  for (unsigned half = 16; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) sums[lane][place] += sums[lane + half][place];
  }
  if (lane == 0 && column < columns) y[column] = sums[0][place];
#endif
}

// The last of `count` parts that begins at `block` or before.
ABELE_INLINE unsigned part_of(const unsigned* first, unsigned count, unsigned block) {
  unsigned low = 0, high = count;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (first[middle] <= block ? low : high) = middle;
  }
  return low;
}

}  // namespace abele
