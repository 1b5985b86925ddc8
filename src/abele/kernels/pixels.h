// Vectors whose lanes are neighbouring pixels of one image: for few samples.
//
// Rows of a plane follow each other with the zeros of the border between them. Pixel i of the
// output then meets tap (kh, kw) at i + kh * pitch + kw, whatever its row: a plane is one run of
// vectors. What they compute between the end of a row and the begin of the next is dropped.
#pragma once

#include "conv.h"
#include "images.h"

namespace abele::pixels {

// Register blocks of output channels x vectors or taps leave room for the operands.
constexpr int MAX_OUT = REGISTERS == 32 ? 6 : 4;

// The planes of an image with zeros around them; `plane` floats each, more than its rows need.
struct Padded {
  Index channels, height, width, pad_h, pad_w, pitch, plane;

  Index size() const { return channels * plane; }
  Index first() const { return pad_h * pitch + pad_w; }  // the first pixel that is no border
  void fill(Index channel, const float* pixels, float* image) const {
    const float* from = pixels + channel * height * width;
    float *to = image + channel * plane, *end = to + plane;
    to = std::fill_n(to, first(), 0.0f);
    for (Index y = 0; y < height; ++y, from += width) {
      to = std::copy_n(from, width, to);
      if (y + 1 < height) to = std::fill_n(to, pitch - width, 0.0f);
    }
    std::fill(to, end, 0.0f);
  }
};

// -- outputs ------------------------------------------------------------------------------------
//
// Outputs of images that are computed one by one: forward, and the gradient of the input.

// Vectors of each output channel that are computed before they are written back.
constexpr Index VECTORS_AT_ONCE = 64;
// A few output channels x a few vectors of one plane.
struct Tile {
  const float* in;
  Index plane, pitch, channels, kernel_h, kernel_w;
  const float* weight;  // [in channel][tap][out channel]
  const float* bias;
  float slope;
  float* out;
  Index out_plane;
};

constexpr int MAX_VECTORS = REGISTERS == 32 ? 4 : 2;

template <int OUT, int VECTORS>
void correlate(const Tile& t) {
  Vec sums[OUT][VECTORS] = {};
  const float* weight = t.weight;
  for (Index c = 0; c < t.channels; ++c)
    for (Index i = 0; i < t.kernel_h; ++i) {
      const float* in = t.in + c * t.plane + i * t.pitch;
      for (Index j = 0; j < t.kernel_w; ++j, ++in, weight += OUT) {
        Vec pixels[VECTORS];
#pragma GCC unroll 8
        for (int k = 0; k < VECTORS; ++k) pixels[k] = load(in + k * LANES), keep(pixels[k]);
#pragma GCC unroll 8
        for (int r = 0; r < OUT; ++r) {
          const Vec w = broadcast(weight[r]);
#pragma GCC unroll 8
          for (int k = 0; k < VECTORS; ++k) sums[r][k] += w * pixels[k];
        }
      }
    }
#pragma GCC unroll 8
  for (int r = 0; r < OUT; ++r)
#pragma GCC unroll 8
    for (int k = 0; k < VECTORS; ++k) {
      Vec value = sums[r][k];
      if (t.bias != nullptr) value += broadcast(t.bias[r]);
      if (t.slope != 1.0f) value = activated(value, t.slope);
      store(t.out + r * t.out_plane + k * LANES, value);
    }
}

using TileKernel = void (*)(const Tile&);
constexpr auto TILE_KERNELS = table_of<MAX_OUT * MAX_VECTORS>(
    [](auto i) -> TileKernel { return correlate<i / MAX_VECTORS + 1, i % MAX_VECTORS + 1>; });

// Outputs of a convolution of stride 1, from padded planes.
struct Plan {
  Index in_channels, out_channels, out_height, out_width, kernel_h, kernel_w, pitch;
  Index in_stride, out_stride;  // of the weights
  bool flipped;

  Index taps() const { return kernel_h * kernel_w; }
  Index blocks() const { return ceil_div(out_channels, MAX_OUT); }
  Index vectors(Index rows) const { return ceil_div((rows - 1) * pitch + out_width, LANES); }
  Index vectors() const { return vectors(out_height); }
  // Floats of a padded plane that are read: as far as outputs and taps reach.
  Index reach() const { return vectors() * LANES + (kernel_h - 1) * pitch + kernel_w - 1; }
  // Rows are computed in bands.
  Index bands() const {
    const Index rows = std::max<Index>(1, VECTORS_AT_ONCE * LANES / pitch);
    return ceil_div(out_height, std::min(rows, out_height));
  }
  Index tasks() const { return blocks() * bands(); }
  Index room() const { return MAX_OUT * vectors(ceil_div(out_height, bands())) * LANES; }

  // [block][in channel][tap][out channel in block]: read in order.
  void pack(const float* weight, float* to) const {
    for (Index block = 0; block < blocks(); ++block) {
      const auto [first, out] = part(out_channels, blocks(), block);
      for (Index c = 0; c < in_channels; ++c)
        for (Index k = 0; k < taps(); ++k)
          for (Index r = 0; r < out; ++r)
            *to++ = weight[(first + r) * out_stride + c * in_stride +
                           (flipped ? taps() - 1 - k : k)];
    }
  }
};

// One block of output channels in one band of an image.
struct Band {
  const Plan& plan;
  const float *packed, *bias;
  float slope;
  Index plane;  // of the padded image

  void operator()(Index task, const float* image, float* room, float* y) const {
    const auto [first, out] = part(plan.out_channels, plan.blocks(), task / plan.bands());
    const auto [y0, height] = part(plan.out_height, plan.bands(), task % plan.bands());
    const Index vectors = plan.vectors(height), groups = ceil_div(vectors, MAX_VECTORS);
    Tile tile = {nullptr, plane, plan.pitch, plan.in_channels, plan.kernel_h, plan.kernel_w,
                 packed + first * plan.in_channels * plan.taps(),
                 bias == nullptr ? nullptr : bias + first, slope, nullptr, vectors * LANES};
    for (Index g = 0; g < groups; ++g) {
      const auto [begin, count] = part(vectors, groups, g);
      tile.in = image + y0 * plan.pitch + begin * LANES, tile.out = room + begin * LANES;
      TILE_KERNELS[(out - 1) * MAX_VECTORS + count - 1](tile);
    }
    for (Index r = 0; r < out; ++r) {
      const float* from = room + r * tile.out_plane;
      float* to = y + ((first + r) * plan.out_height + y0) * plan.out_width;
      for (Index row = 0; row < height; ++row, from += plan.pitch, to += plan.out_width)
        std::copy_n(from, plan.out_width, to);
    }
  }
};

// -- gradients of weights -----------------------------------------------------------------------
//
// The gradients of the weights and the bias of images that are computed one by one: sums over
// pixels in registers, over lanes at the end.

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
constexpr auto TAPS_KERNELS = table_of<MAX_OUT * MAX_TAPS>([](auto i) -> TapsKernel {
  constexpr int out = i / MAX_TAPS + 1, taps = i % MAX_TAPS + 1;
  if constexpr (out <= max_channels_for(taps)) return correlate_taps<out, taps>;
  return nullptr;
});

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
