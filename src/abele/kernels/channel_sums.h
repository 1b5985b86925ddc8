// Gradients that are sums over all pixels of channels-last images: those of weight and bias.
//
// A row is summed in float, rows in double, parts of rows in their order.
#pragma once

#include <algorithm>
#include <array>

#include "channel_vectors.h"
#include "conv.h"

namespace abele::channels_last {

constexpr Index PART = 16;  // rows whose gradients are summed before others

// Registers of sums of one input that, with gradients around a pixel and the input, fill all.
template <int K>
constexpr int TOGETHER = K == 5 ? REGISTERS / 8 : K == 3 ? REGISTERS / 4 : 8;

// sums[I][K][LANES]: what one row of inputs (I times INPUTS of its channels) and one of gradients give.
template <class Sums, int K, int I>
void row_gradient(const float* x, Index in, const float* grad, Index out, Index width,
                  double* sums) {
  constexpr int HALF = K / 2, V = Sums::LANES;
  Vec<V> row[I][K] = {};
  Vec<V> near[K];  // gradients of the pixels around, from right to left
  const Vec<V> zero = {};
  for (Index k = 0; k < K; ++k) {
    const Index at = HALF - k - 1;  // one step before the first pixel
    near[k] = at >= 0 && at < width ? Sums::outputs(grad + at * out) : zero;
  }
  for (Index p = 0; p < width; ++p) {
#pragma GCC unroll 8
    for (int k = K - 1; k > 0; --k) near[k] = near[k - 1];
    near[0] = p + HALF < width ? Sums::outputs(grad + (p + HALF) * out) : zero;
#pragma GCC unroll 8
    for (int i = 0; i < I; ++i) {
      const Vec<V> value = Sums::spread(x + p * in + i * Sums::INPUTS);
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) row[i][k] += value * near[k];
    }
  }
  for (int i = 0; i < I; ++i)
    for (int k = 0; k < K; ++k)
      for (int v = 0; v < V; ++v) sums[(i * K + k) * V + v] += row[i][k][v];
}

// Adds the sums of the rows of gradients [first, end): [out / OUTPUTS][K][in / INPUTS][K][LANES].
template <class Sums, int K, int I>
void part_gradient(const Conv& conv, const float* x, const float* grad, Index first, Index end,
                   double* sums) {
  const Index in = conv.in_channels, out = conv.out_channels;
  const Index height = conv.in_height, width = conv.in_width;
  for (Index block = 0; block < out; block += Sums::OUTPUTS)
    for (Index r = first; r < end; ++r)
      for (int ky = 0; ky < K; ++ky) {
        const Index row = r % height + ky - K / 2;
        if (row < 0 || row >= height) continue;
        const float* from = x + (r - r % height + row) * width * in;
        double* to = sums + (block * K + ky * Sums::OUTPUTS) * in * K;
        for (Index c = 0; c < in; c += I * Sums::INPUTS)
          row_gradient<Sums, K, I>(from + c, in, grad + r * width * out + block, out, width,
                                   to + c * K * Sums::OUTPUTS);
      }
}

// Calls add(first row, end, sums) for parts of the rows and adds up their sums in order: the same
// bits for any number of threads.
template <class Add>
const double* in_parts(Index rows, Index size, int threads, Scratch& scratch, Add add) {
  const Index parts = ceil_div(rows, PART);
  double* sums = scratch.zeros<double>(std::max<Index>(parts, 1) * size);
  for_each(parts, threads, [&](Index i) {
    add(i * PART, std::min(rows, (i + 1) * PART), sums + i * size);
  });
  for (Index part = 1; part < parts; ++part)
    for (Index i = 0; i < size; ++i) sums[i] += sums[part * size + i];
  return sums;
}

template <class Sums, int K, int I>
void weight_gradient(const Conv& conv, const float* x, const float* grad, float* result,
                     int threads, Scratch& scratch) {
  constexpr int OUTPUTS = Sums::OUTPUTS, INPUTS = Sums::INPUTS;
  const Index in = conv.in_channels;
  const double* sums = in_parts(
      conv.images * conv.in_height, conv.weights(), threads, scratch,
      [&](Index first, Index end, double* to) {
        part_gradient<Sums, K, I>(conv, x, grad, first, end, to);
      });
  for (Index o = 0; o < conv.out_channels; ++o)
    for (Index c = 0; c < in; ++c)
      for (int ky = 0; ky < K; ++ky)
        for (int kx = 0; kx < K; ++kx) {
          const Index row = (o / OUTPUTS * K + ky) * in / INPUTS + c / INPUTS;
          const Index lane = o % OUTPUTS * INPUTS + c % INPUTS;
          result[((o * in + c) * K + ky) * K + kx] =
              static_cast<float>(sums[(row * K + kx) * Sums::LANES + lane]);
        }
}

// Adds the sums of one row of gradients, for the channels of one block that exist.
template <int V>
void row_sums(const float* grad, Index out, Index width, Index lanes, double* sums) {
  if (lanes < V) {
    for (Index c = 0; c < lanes; ++c) {
      float some[4] = {};  // beside each other: an addition takes as long as four
      Index p = 0;
      for (; p + 4 <= width; p += 4)
        for (Index i = 0; i < 4; ++i) some[i] += grad[(p + i) * out + c];
      for (; p < width; ++p) some[p % 4] += grad[p * out + c];
      sums[c] += (some[0] + some[1]) + (some[2] + some[3]);
    }
    return;
  }
  Vec<V> even = {}, odd = {};
  Index p = 0;
  for (; p + 2 <= width; p += 2) {
    even += load<V>(grad + p * out);
    odd += load<V>(grad + (p + 1) * out);
  }
  if (p < width) even += load<V>(grad + p * out);
  for (int v = 0; v < V; ++v) sums[v] += even[v] + odd[v];
}

// Sums of each channel over rows of pixels.
template <int V>
void channel_sums(Index rows, Index width, Index channels, const float* x, float* result,
                  int threads, Scratch& scratch) {
  const double* sums = in_parts(rows, channels, threads, scratch,
                                [&](Index first, Index end, double* to) {
                                  for (Index r = first; r < end; ++r)
                                    for (Index block = 0; block < channels; block += V)
                                      row_sums<V>(x + r * width * channels + block, channels, width,
                                                  std::min<Index>(V, channels - block), to + block);
                                });
  for (Index c = 0; c < channels; ++c) result[c] = static_cast<float>(sums[c]);
}

}  // namespace abele::channels_last
