// The gradients of weight and bias of a convolution that only a pool of 2x2 reads.
//
// Of the four pixels of a window one has a gradient, in each sample another one. As an image these are
// mostly zeros, and larger than the nearest cache; here each window's are made in registers.
#pragma once

#include "conv.h"
#include "pooled_lanes.h"
#include "weight_gradient.h"

namespace abele {
inline namespace ABELE_LENGTH {

struct PooledGradient {
  const Conv& conv;
  const float* grad;  // of the windows of the first sample
  Places<const uint8_t> places;
  Image x;
  Index valid;

  // Sums, the gradients of a window and a pixel have to be in registers. At borders without windows, and
  // beside the image, zeros would have to be multiplied.
  static bool has_code(const Conv& conv) {
    const Index size = conv.kernel_height;
    const bool fits = size == 3 || (size == 5 && REGISTERS == 32);
    const bool covered = conv.out_height % 2 == 0 && conv.out_width % 2 == 0;
    const bool plain = conv.stride_height == 1 && conv.stride_width == 1 && conv.pad_height == 0 &&
                       conv.pad_width == 0;
    return fits && conv.kernel_width == size && covered && plain && conv.in_channels == 1;
  }

  // The gradients of an output channel, of which either may be null. Pixels are only looked at for that of
  // the weight.
  void operator()(Index channel, float* weight, float* bias, bool first_block) const {
    if (conv.kernel_height == 3)
      of_size<3>(channel, weight, bias, first_block);
    else
      of_size<5>(channel, weight, bias, first_block);
  }

 private:
  static constexpr int MOST_TAPS = 25;
  Index height() const { return conv.out_height / 2; }
  Index width() const { return conv.out_width / 2; }

  // Adds the products of the gradients of some windows, a line at most, with the pixels of each tap, and
  // the gradients themselves. `i` is the first window.
  template <int size>
  void add_windows(Index channel, Index i, Index count, Vec* totals) const {
    const Index first = channel * height() * width() + i, row = x.row();
    Vec line[LINE], sums[size][size] = {}, bias = {};
    to_lanes(grad + first, conv.out_channels * height() * width(), valid, count, line);
    Index y = i / width(), at = i % width();
    const Vec* from = x.at(0, 2 * y) + 2 * at;
    for (Index k = 0; k < count; ++k) {
      const LanePlaces place = load_places(places, first + k);
      Vec grads[4];
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) grads[p] = place == p ? line[k] : Vec{}, keep(grads[p]);
      bias += (grads[0] + grads[1]) + (grads[2] + grads[3]);
#pragma GCC unroll 8
      for (int v = 0; v <= size; ++v)
#pragma GCC unroll 8
        for (int u = 0; u <= size; ++u) {
          Vec pixel = from[v * row + u];
          keep(pixel);
#pragma GCC unroll 4
          for (int p = 0; p < 4; ++p) {
            const int a = v - p / 2, b = u - p % 2;
            if (a >= 0 && a < size && b >= 0 && b < size) sums[a][b] += grads[p] * pixel;
          }
        }
      from += 2;
      if (++at == width()) at = 0, from = x.at(0, 2 * ++y);
    }
#pragma GCC unroll 32
    for (int tap = 0; tap < size * size; ++tap) totals[tap] += sums[tap / size][tap % size];
    totals[size * size] += bias;
  }

  template <int size>
  void of_size(Index channel, float* weight, float* bias, bool first_block) const {
    const Index windows = height() * width();
    Vec totals[size * size + 1] = {};
    for (Index i = 0; i < windows; i += LINE)
      add_windows<size>(channel, i, std::min(LINE, windows - i), totals);
    if (weight != nullptr)
      store(totals, size * size, weight + channel * size * size, first_block);
    if (bias != nullptr) store(totals + size * size, 1, bias + channel, first_block);
  }

  void store(const Vec* sums, Index count, float* to, bool first_block) const {
    float summed[MOST_TAPS + 3];  // as many as sum_lanes writes at once
    sum_lanes(sums, count, summed);
    for (Index i = 0; i < count; ++i) to[i] = summed[i] + (first_block ? 0.0f : to[i]);
  }
};

}  // namespace ABELE_LENGTH
}  // namespace abele
