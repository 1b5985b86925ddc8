// The gradients of the weights and the bias of images that are computed one by one: sums over
// pixels in registers, over lanes at the end.
#pragma once

#include <array>
#include <utility>

#include "pixel_outputs.h"

namespace abele::pixels {

// A sum of more vectors is rounded in parts.
constexpr Index VECTORS_PER_SUM = 256;

// A few output channels against a few taps of the kernel, `tap` floats apart in the input.
struct Taps {
  const float *grad, *x;
  Index grad_plane, tap, vectors;
};

constexpr int MAX_TAPS = 5;
constexpr int max_channels_for(int taps) { return std::min(MAX_OUT, (REGISTERS - 3) / (taps + 1)); }

// Adds [OUT][TAPS] sums over the pixels of a plane to `totals`.
template <int OUT, int TAPS>
void correlate_taps(const Taps& t, Vec* totals) {
  Vec sums[OUT][TAPS] = {};
  for (Index v = 0; v < t.vectors * LANES; v += LANES) {
    Vec grads[OUT];
#pragma GCC unroll 8
    for (int r = 0; r < OUT; ++r) grads[r] = load(t.grad + r * t.grad_plane + v), keep(grads[r]);
#pragma GCC unroll 8
    for (int k = 0; k < TAPS; ++k) {
      Vec pixel = load(t.x + k * t.tap + v);
      keep(pixel);
#pragma GCC unroll 8
      for (int r = 0; r < OUT; ++r) sums[r][k] += grads[r] * pixel;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < OUT; ++r)
#pragma GCC unroll 8
    for (int k = 0; k < TAPS; ++k) totals[r * TAPS + k] += sums[r][k];
}

using TapsKernel = void (*)(const Taps&, Vec*);
template <int I>
constexpr TapsKernel taps_kernel() {
  constexpr int out = I / MAX_TAPS + 1, taps = I % MAX_TAPS + 1;
  if constexpr (out <= max_channels_for(taps))
    return correlate_taps<out, taps>;
  else
    return nullptr;
}
template <int... I>
constexpr auto taps_kernels(std::integer_sequence<int, I...>) {
  return std::array<TapsKernel, sizeof...(I)>{taps_kernel<I>()...};
}
constexpr auto TAPS_KERNELS =
    taps_kernels(std::make_integer_sequence<int, MAX_OUT * MAX_TAPS>());

// Sums over the pixels of some images, whose gradients begin at `grads` and inputs at `images`.
struct Weights {
  const Conv& conv;
  const Plan& plan;
  const Padded &input, &gradient;
  const float *images, *grads;

  // Taps are the columns of the kernel, or, where it has only one, the input channels.
  bool over_channels() const { return conv.kernel_width == 1; }
  Index taps() const { return over_channels() ? conv.in_channels : conv.kernel_width; }
  Index tap_groups() const { return ceil_div(taps(), MAX_TAPS); }
  Index channels_at_most() const { return max_channels_for(ceil_div(taps(), tap_groups())); }
  Index blocks() const { return ceil_div(conv.out_channels, channels_at_most()); }
  Index outer() const { return over_channels() ? 1 : conv.in_channels; }
  Index tasks() const { return blocks() * tap_groups() * outer() * conv.kernel_height; }

  void operator()(Index task, Index count, float* result, bool first_images) const {
    const Index kh = task % conv.kernel_height, c = task / conv.kernel_height % outer();
    const Index group = task / conv.kernel_height / outer();
    const auto [first, out] = part(conv.out_channels, blocks(), group / tap_groups());
    const auto [tap, some] = part(taps(), tap_groups(), group % tap_groups());
    const Index step = over_channels() ? input.plane : 1;
    const TapsKernel kernel = TAPS_KERNELS[(out - 1) * MAX_TAPS + some - 1];
    Vec sums[MAX_OUT * MAX_TAPS] = {};
    for (Index i = 0; i < count; ++i)
      for (Index v = 0; v < plan.vectors(); v += VECTORS_PER_SUM) {
        const float* grad = grads + i * gradient.size() + first * gradient.plane;
        const float* x = images + i * input.size() + c * input.plane;
        kernel({grad + gradient.first() + v * LANES,
                x + kh * input.pitch + tap * step + v * LANES, gradient.plane, step,
                std::min(VECTORS_PER_SUM, plan.vectors() - v)},
               sums);
      }
    float summed[MAX_OUT * MAX_TAPS + 4];
    sum_lanes(sums, out * some, summed);
    const Index between = over_channels() ? conv.kernel_height : 1;
    for (Index r = 0; r < out; ++r)
      for (Index k = 0; k < some; ++k) {
        float* to = result + ((first + r) * conv.in_channels + c) * conv.taps() +
                    kh * conv.kernel_width + (tap + k) * between;
        *to = summed[r * some + k] + (first_images ? 0.0f : *to);
      }
  }

  void bias(Index channel, Index count, float* result, bool first_images) const {
    Vec sum = {};
    for (Index i = 0; i < count; ++i) {
      const float* grad = grads + i * gradient.size() + channel * gradient.plane;
      Vec even = {}, odd = {};
      Index p = 0;
      for (; p + 2 * LANES <= gradient.plane; p += 2 * LANES)
        even += load(grad + p), odd += load(grad + p + LANES);
      if (p < gradient.plane) even += load(grad + p);
      sum += even + odd;
    }
    float summed[4];
    sum_lanes(&sum, 1, summed);
    result[channel] = summed[0] + (first_images ? 0.0f : result[channel]);
  }
};

}  // namespace abele::pixels
