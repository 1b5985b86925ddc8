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
// What many kernels call, and takes long to compile, is compiled once.
#define ABELE_ONCE static __device__ __noinline__
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
  static __device__ float rounded(float x) { return Half(x); }
};
struct Bfloat {
  unsigned short bits;
  __device__ Bfloat(float x) {
    const unsigned all = bits_of(x);
    bits = x != x ? 0x7fc0 : (all + 0x7fff + (all >> 16 & 1)) >> 16;
  }
  __device__ operator float() const { return float_of(unsigned(bits) << 16); }
  static __device__ float rounded(float x) { return Bfloat(x); }

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

// A number below 2^32 among them.
ABELE_INLINE unsigned number(const void* pointer) { return unsigned((unsigned long long)pointer); }

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
}

// The sum of a number of each thread of a block; all threads get it.
ABELE_INLINE float block_sum(float x) {
  __shared__ float sums[threads];
  sums[threadIdx.x] = x;
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  const float sum = sums[0];
  __syncthreads();  // before the next sum writes
  return sum;
}

// Part of a channel of images [samples, channels, pixels]: its `rows` numbers, of all samples one
// after the other, in parts of as many as a block reads.
constexpr unsigned each_of_part = 16, of_part = threads * each_of_part;
struct Part {
  unsigned channel, first, count, channels, pixels;
  __device__ Part(unsigned block, unsigned channels, unsigned pixels, unsigned rows)
      : channels(channels), pixels(pixels) {
    const unsigned parts = (rows + of_part - 1) / of_part;
    channel = block / parts;
    first = block % parts * of_part;
    count = rows - first < of_part ? rows - first : of_part;
  }
  // Where the i-th number of the part lies.
  __device__ int64_t at(unsigned i) const {
    const unsigned row = first + i;
    return (int64_t(row / pixels) * channels + channel) * pixels + row % pixels;
  }
};

// Of each part of each channel, its mean and the sum of squared distances from that.
ABELE_ONCE void channel_moments(unsigned block, unsigned channels, unsigned pixels,
                                unsigned rows, const float* x, float* moments) {
  const Part part(block, channels, pixels, rows);
  float values[each_of_part], sum = 0, rest = 0, squares = 0;
#pragma unroll
  for (unsigned turn = 0; turn < each_of_part; ++turn) {
    const unsigned i = turn * threads + threadIdx.x;
    values[turn] = i < part.count ? x[part.at(i)] : 0;
    sum += values[turn];
  }
  const float mean = block_sum(sum) / part.count;
#pragma unroll
  for (unsigned turn = 0; turn < each_of_part; ++turn) {
    const float distance = values[turn] - mean;
    if (turn * threads + threadIdx.x < part.count) {
      rest += distance;
      squares += distance * distance;
    }
  }
  // What rounding has left out of the mean: distances are small where numbers are far from zero.
  rest = block_sum(rest) / part.count;
  rest = rest == rest ? rest : 0;  // an infinite mean stays one
  squares = block_sum(squares);
  if (threadIdx.x == 0) {
    moments[2 * block] = mean + rest;
    moments[2 * block + 1] = squares - rest * rest * part.count;
  }
}

// Mean and sum of squared distances of a channel, from those of its parts, to all threads.
ABELE_INLINE void merged_moments(unsigned channel, unsigned rows, const float* moments, float& mean,
                                 float& squares) {
  const unsigned parts = (rows + of_part - 1) / of_part;
  const float* of_channel = moments + 2 * int64_t(channel) * parts;
  const float first = of_channel[0] - of_channel[0] == 0 ? of_channel[0] : 0;  // if it is finite
  float sum = 0;
  for (unsigned part = threadIdx.x; part < parts; part += threads) {
    const unsigned count = part + 1 < parts ? of_part : rows - part * of_part;
    sum += (of_channel[2 * part] - first) * (float(count) / rows);
  }
  mean = first + block_sum(sum);
  sum = 0;
  for (unsigned part = threadIdx.x; part < parts; part += threads) {
    const unsigned count = part + 1 < parts ? of_part : rows - part * of_part;
    const float distance = of_channel[2 * part] - mean;
    sum += of_channel[2 * part + 1] + distance * distance * count;
  }
  squares = block_sum(sum);
}

ABELE_ONCE void channel_statistics(unsigned channel, unsigned rows, float eps,
                                   const float* moments, float* mean, float* rstd) {
  float of_channel, squares;
  merged_moments(channel, rows, moments, of_channel, squares);
  if (threadIdx.x == 0) {
    mean[channel] = of_channel;
    rstd[channel] = 1 / std::sqrt(squares / rows + eps);
  }
}
// With running statistics, which count a batch by `momentum`.
ABELE_ONCE void channel_statistics(unsigned channel, unsigned rows, float eps, float momentum,
                                   const float* moments, const float* running_mean,
                                   const float* running_var, float* mean, float* rstd,
                                   float* next_mean, float* next_var) {
  float of_channel, squares;
  merged_moments(channel, rows, moments, of_channel, squares);
  if (threadIdx.x == 0) {
    mean[channel] = of_channel;
    rstd[channel] = 1 / std::sqrt(squares / rows + eps);
    next_mean[channel] = momentum * of_channel + (1 - momentum) * running_mean[channel];
    const float unbiased = squares / (rows - 1.0f);
    next_var[channel] = momentum * unbiased + (1 - momentum) * running_var[channel];
  }
}

// Of each part of each channel, sums of gradients, and of gradients times distances from the mean.
ABELE_ONCE void channel_products(unsigned block, unsigned channels, unsigned pixels,
                                 unsigned rows, const float* grad, const float* x,
                                 const float* mean, float* products) {
  const Part part(block, channels, pixels, rows);
  const float of_channel = mean[part.channel];
  float plain = 0, scaled = 0;
#pragma unroll
  for (unsigned turn = 0; turn < each_of_part; ++turn) {
    const unsigned i = turn * threads + threadIdx.x;
    if (i < part.count) {
      const int64_t at = part.at(i);
      plain += grad[at];
      scaled += grad[at] * (x[at] - of_channel);
    }
  }
  plain = block_sum(plain);
  scaled = block_sum(scaled);
  if (threadIdx.x == 0) products[2 * block] = plain, products[2 * block + 1] = scaled;
}

// Gradients of weight and bias, from sums of parts.
ABELE_ONCE void channel_totals(unsigned channel, unsigned rows, const float* products,
                               const float* rstd, float* grad_weight, float* grad_bias) {
  const unsigned parts = (rows + of_part - 1) / of_part;
  const float* of_channel = products + 2 * int64_t(channel) * parts;
  float plain = 0, scaled = 0;
  for (unsigned part = threadIdx.x; part < parts; part += threads) {
    plain += of_channel[2 * part];
    scaled += of_channel[2 * part + 1];
  }
  plain = block_sum(plain);
  scaled = block_sum(scaled);
  if (threadIdx.x == 0) grad_bias[channel] = plain, grad_weight[channel] = scaled * rstd[channel];
}

// Of each part of each channel, its sum.
ABELE_ONCE void channel_sums(unsigned block, unsigned channels, unsigned pixels, unsigned rows,
                             const float* x, float* sums) {
  const Part part(block, channels, pixels, rows);
  float sum = 0;
#pragma unroll
  for (unsigned turn = 0; turn < each_of_part; ++turn) {
    const unsigned i = turn * threads + threadIdx.x;
    if (i < part.count) sum += x[part.at(i)];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[block] = sum;
}

// The sum of a channel, from those of its parts.
ABELE_ONCE void channel_sum(unsigned channel, unsigned parts, const float* sums, float* y) {
  float sum = 0;
  for (unsigned part = threadIdx.x; part < parts; part += threads)
    sum += sums[int64_t(channel) * parts + part];
  sum = block_sum(sum);
  if (threadIdx.x == 0) y[channel] = sum;
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
