// The gradients of the weights and the bias: sums over pixels in registers, over lanes at the end.
#pragma once

#include "conv.h"
#include "images.h"

namespace abele {
inline namespace ABELE_LENGTH {

// Register blocks of output channels x taps of the kernel leave room for the operands.
constexpr int MAX_TAPS = 5, MAX_CHANNELS = 6;
constexpr int max_channels_for(int taps) {
  return std::min(MAX_CHANNELS, (REGISTERS - 4) / (taps + 1));
}
// Rounding errors of one long sum grow with its length; sums of this many pixels are added up.
constexpr Index PIXELS_PER_SUM = 256;

// A few output channels against a few taps; `tap` is the distance of their pixels in the input.
struct Taps {
  const Vec *grad, *x;
  Index grad_plane, grad_row, x_row, x_step, tap;
  Index rows, cols;
};

// Adds [ROWS][TAPS] sums over rows y0 to y1 to `totals`.
template <int ROWS, int TAPS>
void correlate_taps(const Taps& t, Index y0, Index y1, Vec* totals) {
  Vec sums[ROWS][TAPS] = {};
  for (Index y = y0; y < y1; ++y) {
    const Vec* grad = t.grad + y * t.grad_row;
    const Vec* x = t.x + y * t.x_row;
    for (Index i = 0; i < t.cols; ++i, ++grad, x += t.x_step) {
      Vec grads[ROWS];
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) grads[r] = grad[r * t.grad_plane], keep(grads[r]);
#pragma GCC unroll 8
      for (int k = 0; k < TAPS; ++k) {
        Vec pixel = x[k * t.tap];
        keep(pixel);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) sums[r][k] += grads[r] * pixel;
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int k = 0; k < TAPS; ++k) totals[r * TAPS + k] += sums[r][k];
}

using TapsKernel = void (*)(const Taps&, Index, Index, Vec*);
constexpr auto TAPS_KERNELS = table_of<MAX_CHANNELS * MAX_TAPS>([](auto i) -> TapsKernel {
  constexpr int rows = i / MAX_TAPS + 1, taps = i % MAX_TAPS + 1;
  if constexpr (rows <= max_channels_for(taps)) return correlate_taps<rows, taps>;
  return nullptr;
});

struct WeightGradient {
  const Conv& conv;
  Image grad, x;

  // Taps are the columns of the kernel, or, where it has only one, the input channels.
  bool over_channels() const { return conv.kernel_width == 1; }
  Index taps() const { return over_channels() ? conv.in_channels : conv.kernel_width; }
  Index tap_groups() const { return ceil_div(taps(), MAX_TAPS); }
  Index channels_at_most() const { return max_channels_for(ceil_div(taps(), tap_groups())); }
  Index blocks() const { return ceil_div(conv.out_channels, channels_at_most()); }
  Index outer() const { return over_channels() ? 1 : conv.in_channels; }
  Index tasks() const { return blocks() * tap_groups() * outer() * conv.kernel_height; }

  void operator()(Index task, float* result, bool first_block) const {
    const Index kh = task % conv.kernel_height;
    const Index c = task / conv.kernel_height % outer();
    const Index group = task / conv.kernel_height / outer();
    const auto [first, rows] = part(conv.out_channels, blocks(), group / tap_groups());
    const auto [tap, count] = part(taps(), tap_groups(), group % tap_groups());
    // Rows of the gradient whose input row is inside the image.
    const Index s = conv.stride_height, start = kh - conv.pad_height;
    const Index y0 = start >= 0 ? 0 : ceil_div(-start, s);
    const Index y1 = std::min(conv.out_height, ceil_div(conv.in_height - start, s));
    Taps t = {};
    t.tap = over_channels() ? x.plane() : 1;
    t.rows = std::max<Index>(0, y1 - y0), t.cols = conv.out_width;
    t.grad_plane = grad.plane(), t.grad_row = grad.row();
    t.x_row = s * x.row(), t.x_step = conv.stride_width;
    if (t.rows > 0) {
      t.grad = grad.at(first, y0);
      t.x = x.at(c, y0 * s + start) - conv.pad_width + tap * t.tap;
    }
    Vec sums[MAX_CHANNELS * MAX_TAPS] = {};
    const TapsKernel kernel = TAPS_KERNELS[(rows - 1) * MAX_TAPS + count - 1];
    const Index step_y = std::max<Index>(1, PIXELS_PER_SUM / t.cols);
    for (Index y = 0; y < t.rows; y += step_y) kernel(t, y, std::min(t.rows, y + step_y), sums);
    float summed[MAX_CHANNELS * MAX_TAPS];
    sum_lanes(sums, rows * count, summed);
    const Index step = over_channels() ? conv.kernel_height : 1;
    const Index per_channel = conv.kernel_height * conv.kernel_width;
    for (Index r = 0; r < rows; ++r)
      for (Index k = 0; k < count; ++k) {
        float* to = result + ((first + r) * conv.in_channels + c) * per_channel +
                    kh * conv.kernel_width + (tap + k) * step;
        *to = summed[r * count + k] + (first_block ? 0.0f : *to);
      }
  }

  void bias(Index channel, float* result, bool first_block) const {
    Vec total = {};
    for (Index y = 0; y < grad.height; ++y) {
      const Vec* row = grad.at(channel, y);
      Vec even = {}, odd = {};
      Index i = 0;
      for (; i + 2 <= grad.width; i += 2) even += row[i], odd += row[i + 1];
      if (i < grad.width) even += row[i];
      total += even + odd;
    }
    float summed;
    sum_lanes(&total, 1, &summed);
    result[channel] = summed + (first_block ? 0.0f : result[channel]);
  }
};

}  // namespace ABELE_LENGTH
}  // namespace abele
