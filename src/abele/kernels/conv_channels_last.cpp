// Direct convolution of channels-last images with few channels.
//
// A register holds eight or sixteen output channels of a pixel, or eight for each of two inputs;
// channels left over cost a whole register. A tile of pixels of a row stays in registers; each input
// is broadcast once and meets all columns of the kernel. Libraries reach a third of the processor's
// speed with so few channels.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "channel_sums.h"
#include "channel_vectors.h"
#include "conv.h"

namespace abele::channels_last {
namespace {

// Writes the first `lanes` of the sums of COUNT pixels.
template <int V, int COUNT>
void write(const Vec<V>* sums, float* y, Index out, Index lanes) {
  if (lanes == V) {
#pragma GCC unroll 32
    for (int p = 0; p < COUNT; ++p) store<V>(y + p * out, sums[p]);
    return;
  }
  float values[COUNT * V];
  // Where pixels follow each other, what is too much of one is written over by the next.
  const Index step = lanes == out ? out : V;
#pragma GCC unroll 32
  for (int p = 0; p < COUNT; ++p) store<V>(values + p * step, sums[p]);
  if (lanes == out) return void(std::memcpy(y, values, COUNT * out * sizeof(float)));
  for (int p = 0; p < COUNT; ++p) std::copy_n(values + p * V, lanes, y + p * out);
}

// The same of registers that have two pixels each.
template <int COUNT>
void write_joined(const Vec<16>* sums, float* y, Index out) {
  if (out == 8) {
#pragma GCC unroll 32
    for (int p = 0; p < COUNT; p += 2) store<16>(y + p * out, sums[p / 2]);
    return;
  }
  float values[COUNT * 8];
#pragma GCC unroll 32
  for (int p = 0; p < COUNT; p += 2) store<16>(values + p * 8, sums[p / 2]);
#pragma GCC unroll 32
  for (int p = 0; p < COUNT; ++p) store<8>(y + p * out, load<8>(values + p * 8));
}

template <int V, int COUNT>
void activate(Vec<V>* sums, float slope) {
  if (slope == 1.0f) return;
#pragma GCC unroll 32
  for (int p = 0; p < COUNT; ++p) sums[p] = sums[p] > 0.0f ? sums[p] : sums[p] * slope;
}

// rows[k] points at the first input of the tile, `K / 2` pixels left of it; null is a row of zeros.
// packed: [K][in / INPUTS][K][LANES].
template <class Sums, int K, int COUNT>
void tile(const float* const* rows, Index in, const float* packed, const float* bias, float slope,
          float* y, Index out, Index lanes) {
  constexpr int V = Sums::LANES;
  Vec<V> sums[COUNT];
#pragma GCC unroll 32
  for (int p = 0; p < COUNT; ++p) sums[p] = load<V>(bias);
  for (int k = 0; k < K; ++k) {
    const float* row = rows[k];
    if (row == nullptr) continue;
    const float* w = packed + k * in / Sums::INPUTS * K * V;
    for (Index c = 0; c < in; c += Sums::INPUTS, w += K * V) {
      Vec<V> weights[K];
      for (int i = 0; i < K; ++i) weights[i] = load<V>(w + i * V);
#pragma GCC unroll 32
      for (int q = 0; q < COUNT + K - 1; ++q) {
        const Vec<V> value = Sums::spread(row + q * in + c);
#pragma GCC unroll 8
        for (int i = 0; i < K; ++i)
          if (q - i >= 0 && q - i < COUNT) sums[q - i] += value * weights[i];
      }
    }
  }
  if constexpr (Sums::INPUTS == 2) {
#pragma GCC unroll 32
    for (int p = 0; p < COUNT; p += 2) sums[p / 2] = Sums::joined(sums[p], sums[p + 1]);
    activate<V, COUNT / 2>(sums, slope);
    write_joined<COUNT>(sums, y, out);
  } else {
    activate<V, COUNT>(sums, slope);
    write<V, COUNT>(sums, y, out, lanes);
  }
}

struct Image {
  const float* data;
  Index height, width, channels;
};

// One row of the result for one block of output channels, of which `lanes` exist.
template <class Sums, int K, int COUNT>
void one_row(const Image& x, Index r, const float* packed, const float* bias, float slope, float* y,
             Index out, Index lanes, float* edge) {
  constexpr Index HALF = K / 2, SPAN = COUNT + K - 1;
  for (Index i = 0; i < x.width; i += COUNT) {
    // The last tile may overlap the one before.
    const Index first = std::min(i, x.width - COUNT), left = first - HALF;
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
    tile<Sums, K, COUNT>(rows, x.channels, packed, bias, slope, y + first * out, out, lanes);
  }
}

// Channels that a pass reads and writes; for the way back they change places.
struct Sides {
  Index in, out;
  Sides(const Conv& conv, bool back)
      : in(back ? conv.out_channels : conv.in_channels),
        out(back ? conv.in_channels : conv.out_channels) {}
};

template <class Sums>
Index rounded(Index channels) {
  return ceil_div(channels, Sums::OUTPUTS) * Sums::OUTPUTS;
}

// [out / OUTPUTS][K][in / INPUTS][K][LANES] from torch's order, zeros where output channels are left.
template <class Sums, int K>
const float* pack(const Conv& conv, const float* weight, bool back, Scratch& scratch) {
  const Sides sides(conv, back);
  const Index in = sides.in, out = sides.out;
  float* packed = scratch.zeros<float>(in * rounded<Sums>(out) * K * K);
  float* to = packed;
  for (Index block = 0; block < out; block += Sums::OUTPUTS)
    for (int ky = 0; ky < K; ++ky)
      for (Index c = 0; c < in; c += Sums::INPUTS)
        for (int kx = 0; kx < K; ++kx)
          for (int lane = 0; lane < Sums::LANES; ++lane, ++to) {
            const Index of = block + lane / Sums::INPUTS, from = c + lane % Sums::INPUTS;
            if (of >= out) continue;
            const Index o = back ? from : of, i = back ? of : from;
            const int y = back ? K - 1 - ky : ky, x = back ? K - 1 - kx : kx;
            *to = weight[((o * conv.in_channels + i) * K + y) * K + x];
          }
  return packed;
}

// [out / OUTPUTS][LANES]: what the sums of a pixel begin with.
template <class Sums>
const float* begin_with(const float* bias, Index out, Scratch& scratch) {
  float* start = scratch.zeros<float>(rounded<Sums>(out) * Sums::INPUTS);
  for (Index o = 0; bias != nullptr && o < out; ++o) start[o * Sums::INPUTS] = bias[o];
  return start;
}

// Pixels of longer tiles, where registers suffice for them. Then no sum has to wait for its last
// product, which is worth a twelfth; but more pixels are computed twice.
template <int K>
constexpr int LONG = K > 1 && PIXELS == 8 ? 10 : PIXELS;
template <int K>
bool gains_by_long_tiles(Index width) {
  return width >= LONG<K> &&
         12 * LONG<K> * ceil_div(width, LONG<K>) < 13 * PIXELS * ceil_div(width, PIXELS);
}

template <class Sums, int K>
void convolve(const Conv& conv, const float* x, const float* weight, const float* bias, float* y,
              bool back, int threads, Scratch& scratch) {
  constexpr Index BLOCK = Sums::OUTPUTS;
  const Sides sides(conv, back);
  const Index height = conv.in_height, width = conv.in_width;
  const float* packed = pack<Sums, K>(conv, weight, back, scratch);
  const float* start = begin_with<Sums>(bias, sides.out, scratch);
  const float slope = back ? 1.0f : static_cast<float>(conv.slope);
  const Index edge = K * (LONG<K> + K - 1) * sides.in;
  const auto row =
      gains_by_long_tiles<K>(width) ? one_row<Sums, K, LONG<K>> : one_row<Sums, K, PIXELS>;
  float* edges = scratch.take<float>(threads * edge);
  for_each(threads, threads, [&](Index t) {
    const auto [first, rows] = part(conv.images * height, threads, t);
    for (Index r = first; r < first + rows; ++r) {
      const Image from{x + r / height * height * width * sides.in, height, width, sides.in};
      for (Index block = 0; block < sides.out; block += BLOCK)
        row(from, r % height, packed + block * sides.in * K * K, start + block * Sums::INPUTS,
            slope, y + r * width * sides.out + block, sides.out,
            std::min(BLOCK, sides.out - block), edges + t * edge);
    }
  });
}

// Calls body with the kernel's size as a constant.
template <class Body>
void with_kernel(Index kernel, Body body) {
  if (kernel == 1) body(std::integral_constant<int, 1>());
  if (kernel == 3) body(std::integral_constant<int, 3>());
  if (kernel == 5) body(std::integral_constant<int, 5>());
}

// Calls body with how sums lie in registers and the kernel's size.
template <class Body>
void choose(Index outputs, Index inputs, Index kernel, Body body) {
  with_kernel(kernel, [&](auto k) {
    if (WIDEST == 16 && outputs % 16 == 0)
      body(Whole<WIDEST>(), k);
    else if (suits_pairs(outputs, inputs))
      body(Pairs(), k);
    else
      body(Whole<8>(), k);
  });
}

bool fills(Index channels) { return channels % 8 == 0; }

// The gradient of a weight of 1x1 is a product in which images and gradients may change places, so
// that those whose channels fill a register do so.
template <class Sums>
void swapped_gradient(const Conv& conv, const float* x, const float* grad, float* result,
                      int threads, Scratch& scratch) {
  const Index in = conv.in_channels, out = conv.out_channels;
  Conv other = conv;
  other.in_channels = out, other.out_channels = in;
  float* transposed = scratch.take<float>(in * out);
  weight_gradient<Sums, 1, 1>(other, grad, x, transposed, threads, scratch);
  for (Index o = 0; o < out; ++o)
    for (Index i = 0; i < in; ++i) result[o * in + i] = transposed[i * out + o];
}

void gradient_of_weight(const Conv& conv, const float* x, const float* grad, float* result,
                        int threads, Scratch& scratch) {
  const Index in = conv.in_channels, out = conv.out_channels;
  const auto run = [&](auto gradient) { gradient(conv, x, grad, result, threads, scratch); };
  if (!fills(out))
    return choose(in, 1, 1, [&](auto sums, auto) { run(swapped_gradient<decltype(sums)>); });
  if (suits_pairs(out, in) && conv.kernel_width == 3)
    return run(in % 24 == 0 ? weight_gradient<Pairs, 3, 6> : weight_gradient<Pairs, 3, 4>);
  choose(out, 1, conv.kernel_width, [&](auto sums, auto k) {
    using Sums = decltype(sums);
    run(in == 1 ? weight_gradient<Sums, k(), 1> : weight_gradient<Sums, k(), TOGETHER<k()>>);
  });
}

}  // namespace

bool has_forward(const Conv& conv) {
  const Index k = conv.kernel_width;
  return (k == 1 || k == 3 || k == 5) && conv.kernel_height == k && conv.stride_height == 1 &&
         conv.stride_width == 1 && conv.pad_height == k / 2 && conv.pad_width == k / 2 &&
         conv.in_width >= PIXELS;
}

bool has_backward(const Conv& conv, const Gradients& wanted) {
  if (!has_forward(conv)) return false;
  if (wanted.weight == nullptr) return true;
  if (fills(conv.out_channels)) return conv.in_channels == 1 || fills(conv.in_channels);
  return conv.kernel_width == 1 && fills(conv.in_channels);
}

void forward(const Conv& conv, const float* x, const float* weight, const float* bias, float* y,
             int threads, Scratch& scratch) {
  choose(conv.out_channels, conv.in_channels, conv.kernel_width, [&](auto sums, auto k) {
    convolve<decltype(sums), k()>(conv, x, weight, bias, y, false, threads, scratch);
  });
}

void backward(const Conv& conv, const float* grad, const float* x, const float* weight,
              const Gradients& to, int threads, Scratch& scratch) {
  if (to.x != nullptr)
    choose(conv.in_channels, conv.out_channels, conv.kernel_width, [&](auto sums, auto k) {
      convolve<decltype(sums), k()>(conv, grad, weight, nullptr, to.x, true, threads, scratch);
    });
  if (to.weight != nullptr) gradient_of_weight(conv, x, grad, to.weight, threads, scratch);
  if (to.bias != nullptr)
    choose(conv.out_channels, 1, 1, [&](auto sums, auto) {
      channel_sums<decltype(sums)::LANES>(conv.images * conv.in_height, conv.in_width,
                                          conv.out_channels, grad, to.bias, threads, scratch);
    });
}

}  // namespace abele::channels_last
