// Direct convolution of channels-last images with few channels.
//
// A register holds eight or sixteen output channels of a pixel; channels left over cost a whole
// register. A tile of pixels of a row stays in registers; each input is broadcast once and meets
// all columns of the kernel. Libraries reach a third of the processor's speed with so few channels.
#include "image_conv.h"

#include <algorithm>
#include <array>
#include <new>
#include <type_traits>
#include <vector>

namespace {

using Index = int64_t;
#if defined(__AVX512F__)
constexpr int PIXELS = 16, WIDEST = 16;
#else
constexpr int PIXELS = 8, WIDEST = 8;
#endif
constexpr Index PART = 16;  // rows whose weight gradients are summed before others

template <int V>
struct Lanes {
  typedef float Type __attribute__((vector_size(V * sizeof(float)), aligned(4), may_alias));
};
template <int V>
using Vec = typename Lanes<V>::Type;

template <int V>
inline Vec<V> load(const float* from) {
  return *reinterpret_cast<const Vec<V>*>(from);
}
template <int V>
inline void store(float* to, Vec<V> value) {
  *reinterpret_cast<Vec<V>*>(to) = value;
}

// rows[k] points at the first input of the tile, `K / 2` pixels left of it; null is a row of zeros.
// packed: [K][in][K][V].
template <int V, int K>
void tile(const float* const* rows, Index in, const float* packed, const float* bias, float slope,
          float* y, Index out, Index lanes) {
  Vec<V> sums[PIXELS];
  for (int p = 0; p < PIXELS; ++p) sums[p] = load<V>(bias);
  for (int k = 0; k < K; ++k) {
    const float* row = rows[k];
    if (row == nullptr) continue;
    const float* w = packed + k * in * K * V;
    for (Index c = 0; c < in; ++c, w += K * V) {
      Vec<V> weights[K];
      for (int i = 0; i < K; ++i) weights[i] = load<V>(w + i * V);
#pragma GCC unroll 32
      for (int q = 0; q < PIXELS + K - 1; ++q) {
        const float value = row[q * in + c];
#pragma GCC unroll 8
        for (int i = 0; i < K; ++i)
          if (q - i >= 0 && q - i < PIXELS) sums[q - i] += value * weights[i];
      }
    }
  }
  for (int p = 0; p < PIXELS; ++p) {
    Vec<V> z = sums[p];
    if (slope != 1.0f) z = z > 0.0f ? z : z * slope;
    if (lanes == V) {
      store<V>(y + p * out, z);
    } else {
      for (Index v = 0; v < lanes; ++v) y[p * out + v] = z[v];
    }
  }
}

struct Image {
  const float* data;
  Index height, width, channels;
};

// One row of the result for one block of V output channels, of which `lanes` exist.
template <int V, int K>
void one_row(const Image& x, Index r, const float* packed, const float* bias, float slope, float* y,
             Index out, Index lanes, float* edge) {
  constexpr Index HALF = K / 2, SPAN = PIXELS + K - 1;
  for (Index i = 0; i < x.width; i += PIXELS) {
    // The last tile may overlap the one before.
    const Index first = std::min(i, x.width - PIXELS), left = first - HALF;
    const Index begin = std::max<Index>(left, 0), end = std::min(left + SPAN, x.width);
    const float* rows[K];
    for (int k = 0; k < K; ++k) {
      const Index from = r + k - HALF;
      if (from < 0 || from >= x.height) {
        rows[k] = nullptr;
        continue;
      }
      const float* row = x.data + from * x.width * x.channels;
      rows[k] = row + left * x.channels;
      if (begin == left && end == left + SPAN) continue;
      float* copy = edge + k * SPAN * x.channels;
      std::fill(copy, copy + SPAN * x.channels, 0.0f);
      std::copy(row + begin * x.channels, row + end * x.channels,
                copy + (begin - left) * x.channels);
      rows[k] = copy;
    }
    tile<V, K>(rows, x.channels, packed, bias, slope, y + first * out, out, lanes);
  }
}

template <int V>
Index rounded(Index channels) {
  return (channels + V - 1) / V * V;
}

// [out / V][K][in][K][V] from torch's order, zeros where V does not divide the output channels. For
// the way back, in and out change places.
template <int V, int K>
std::vector<float> pack(const AbeleConv& conv, const float* weight, bool back) {
  const Index in = back ? conv.out : conv.in, out = back ? conv.in : conv.out;
  std::vector<float> packed(in * rounded<V>(out) * K * K);
  float* to = packed.data();
  for (Index block = 0; block < out; block += V)
    for (int ky = 0; ky < K; ++ky)
      for (Index c = 0; c < in; ++c)
        for (int kx = 0; kx < K; ++kx)
          for (int v = 0; v < V; ++v, ++to) {
            if (block + v >= out) continue;
            const Index o = back ? c : block + v, i = back ? block + v : c;
            const int y = back ? K - 1 - ky : ky, x = back ? K - 1 - kx : kx;
            *to = weight[((o * conv.in + i) * K + y) * K + x];
          }
  return packed;
}

template <int V, int K>
void convolve(const AbeleConv& conv, const float* x, const float* weight, const float* bias,
              float* y, bool back, int threads) {
  const Index in = back ? conv.out : conv.in, out = back ? conv.in : conv.out;
  const std::vector<float> packed = pack<V, K>(conv, weight, back);
  std::vector<float> start(rounded<V>(out));
  if (bias != nullptr) std::copy(bias, bias + out, start.begin());
  const float slope = back ? 1.0f : static_cast<float>(conv.slope);
  const Index edge = K * (PIXELS + K - 1) * in, pixels = conv.height * conv.width;
  std::vector<float> edges(threads * edge);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int part = 0; part < threads; ++part) {
    const Index rows = conv.images * conv.height;
    for (Index r = rows * part / threads; r < rows * (part + 1) / threads; ++r) {
      const Index image = r / conv.height;
      const Image from{x + image * pixels * in, conv.height, conv.width, in};
      for (Index block = 0; block < out; block += V)
        one_row<V, K>(from, r % conv.height, packed.data() + block * in * K * K,
                      start.data() + block, slope, y + r * conv.width * out + block, out,
                      std::min<Index>(V, out - block), edges.data() + part * edge);
    }
  }
}

// sums[I][K]: what one row of inputs (I of its channels) and one row of gradients give.
template <int V, int K, int I>
void row_gradient(const float* x, Index in, const float* grad, Index out, Index width,
                  double* sums) {
  constexpr Index HALF = K / 2;
  Vec<V> found[I][K] = {};
  Vec<V> near[K];  // gradients of the pixels around, from right to left
  const Vec<V> zero = {};
  for (Index k = 0; k < K; ++k) {
    const Index at = HALF - k - 1;  // one step before the first pixel
    near[k] = at >= 0 && at < width ? load<V>(grad + at * out) : zero;
  }
  for (Index p = 0; p < width; ++p) {
#pragma GCC unroll 8
    for (int k = K - 1; k > 0; --k) near[k] = near[k - 1];
    near[0] = p + HALF < width ? load<V>(grad + (p + HALF) * out) : zero;
#pragma GCC unroll 8
    for (int i = 0; i < I; ++i) {
      const float value = x[p * in + i];
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) found[i][k] += value * near[k];
    }
  }
  for (int i = 0; i < I; ++i)
    for (int k = 0; k < K; ++k)
      for (int v = 0; v < V; ++v) sums[(i * K + k) * V + v] += found[i][k][v];
}

// The sums of the rows of gradients [first, end): [out / V][in][K][K][V].
template <int V, int K, int I>
void part_gradient(const AbeleConv& conv, const float* x, const float* grad, Index first, Index end,
                   double* sums) {
  const Index in = conv.in, out = conv.out;
  std::array<double, I * K * V> some;
  for (Index block = 0; block < out; block += V)
    for (Index c = 0; c < in; c += I)
      for (int ky = 0; ky < K; ++ky) {
        std::fill(some.begin(), some.end(), 0.0);
        for (Index r = first; r < end; ++r) {
          const Index row = r % conv.height + ky - K / 2;
          if (row < 0 || row >= conv.height) continue;
          const Index from = r - r % conv.height + row;
          row_gradient<V, K, I>(x + from * conv.width * in + c, in,
                                grad + r * conv.width * out + block, out, conv.width, some.data());
        }
        for (int i = 0; i < I; ++i)
          for (int kx = 0; kx < K; ++kx)
            std::copy_n(some.data() + (i * K + kx) * V, V,
                        sums + (((block / V * in + c + i) * K + ky) * K + kx) * V);
      }
}

template <int V, int K, int I>
void weight_gradient(const AbeleConv& conv, const float* x, const float* grad, float* result,
                     int threads) {
  const Index rows = conv.images * conv.height, parts = (rows + PART - 1) / PART;
  const Index size = conv.in * conv.out * K * K;
  std::vector<double> sums(parts * size);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (Index part = 0; part < parts; ++part)
    part_gradient<V, K, I>(conv, x, grad, part * PART, std::min(rows, (part + 1) * PART),
                           sums.data() + part * size);
  for (Index part = 1; part < parts; ++part)
    for (Index i = 0; i < size; ++i) sums[i] += sums[part * size + i];
  for (Index o = 0; o < conv.out; ++o)
    for (Index c = 0; c < conv.in; ++c)
      for (int k = 0; k < K * K; ++k)
        result[(o * conv.in + c) * K * K + k] =
            static_cast<float>(sums[((o / V * conv.in + c) * K * K + k) * V + o % V]);
}

// Calls body with the kernel's size and the lanes as constants.
template <class Body>
int choose(Index kernel, Index lanes, Body body) {
  try {
    const bool wide = WIDEST == 16 && lanes % 16 == 0;
    const auto with = [&](auto k) {
      return wide ? body(std::integral_constant<int, WIDEST>(), k)
                  : body(std::integral_constant<int, 8>(), k);
    };
    if (kernel == 1) return with(std::integral_constant<int, 1>());
    if (kernel == 3) return with(std::integral_constant<int, 3>());
    if (kernel == 5) return with(std::integral_constant<int, 5>());
    return ABELE_CONV_NO_CODE;
  } catch (const std::bad_alloc&) {
    return ABELE_CONV_NO_MEMORY;
  }
}

}  // namespace

int abele_conv(const AbeleConv* conv, const float* x, const float* weight, const float* bias,
               float* y, int back, int threads) {
  if (conv->width < PIXELS) return ABELE_CONV_NO_CODE;
  return choose(conv->kernel, back ? conv->in : conv->out, [&](auto v, auto k) {
    convolve<v(), k()>(*conv, x, weight, bias, y, back != 0, threads);
    return 0;
  });
}

int abele_conv_weight_gradient(const AbeleConv* conv, const float* x, const float* grad,
                               float* grad_weight, int threads) {
  if (conv->out % 8 != 0) return ABELE_CONV_NO_CODE;
  return choose(conv->kernel, conv->out, [&](auto v, auto k) {
    if (conv->in == 1) {
      weight_gradient<v(), k(), 1>(*conv, x, grad, grad_weight, threads);
      return 0;
    }
    if (conv->in % 8 != 0) return ABELE_CONV_NO_CODE;
    constexpr int inputs = k() == 5 ? 4 : 8;
    weight_gradient<v(), k(), inputs>(*conv, x, grad, grad_weight, threads);
    return 0;
  });
}
