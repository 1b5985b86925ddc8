// Outputs of images that are computed one by one: forward, and the gradient of the input.
#pragma once

#include <array>
#include <utility>

#include "pixels.h"

namespace abele::pixels {

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
template <int... I>
constexpr auto tile_kernels(std::integer_sequence<int, I...>) {
  return std::array<TileKernel, sizeof...(I)>{
      correlate<I / MAX_VECTORS + 1, I % MAX_VECTORS + 1>...};
}
constexpr auto TILE_KERNELS =
    tile_kernels(std::make_integer_sequence<int, MAX_OUT * MAX_VECTORS>());

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

}  // namespace abele::pixels
