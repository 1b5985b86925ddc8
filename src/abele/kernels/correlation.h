// Forward and the gradient of the input: one kernel for register blocks of outputs.
//
// Output row y reads input rows (y * stride + k - pad) / dilation, where that divides. Forward has
// dilation 1; the gradient of the input has stride 1, the forward stride as dilation, and a flipped
// kernel. Nothing is ever multiplied by a dilation's zeros, and by a border's zeros only inside a
// register block.
#pragma once

#include "images.h"
#include "pooled_lanes.h"

namespace abele {
inline namespace ABELE_LENGTH {

// Register blocks of output channels x columns leave room for the operands. With few registers high
// ones: five channels, one block, would be two low ones, of which neither keeps the multipliers busy.
constexpr int MAX_ROWS = 6, MAX_COLS = REGISTERS == 32 ? 4 : 2;
// Pixels that one task computes before it writes them back, small enough to stay in cache.
constexpr Index PIXELS_PER_TASK = 128;

// Neighbouring outputs of one row that share registers, and the taps that reach into the image.
struct Columns {
  Index out, count;     // first output column, how many (each `dilation_w` further)
  Index tap, tap_count; // first tap, how many (each `dilation_w` further)
  Index in;             // input column of the first output at the first tap
};

struct Correlation {
  Index out_channels, out_height, out_width, kernel_h, kernel_w;
  Index stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  Index window = 1;  // rows and columns of outputs of which the largest is kept: 1 or 2

  Index kept_height() const { return out_height / window; }
  Index kept_width() const { return out_width / window; }
  Index blocks() const { return ceil_div(out_channels, MAX_ROWS); }
  // A task has whole windows of rows.
  Index windows_per_task() const {
    const Index pixels = window * std::max<Index>(out_width, 1);
    return std::clamp<Index>(PIXELS_PER_TASK / pixels, 1, std::max<Index>(kept_height(), 1));
  }
  // Of rows; so many that so many threads have equal shares.
  Index groups(Index threads) const {
    const Index least = ceil_div(kept_height(), windows_per_task());
    const Index each = blocks() % threads == 0 ? 1 : threads;
    return std::min(ceil_div(least, each) * each, std::max<Index>(kept_height(), 1));
  }
  Index task_pixels() const { return windows_per_task() * window * out_width; }
  // At most this many register blocks make up a row.
  Index max_columns() const { return ceil_div(out_width, MAX_COLS) + dilation_w; }
  // Zero columns that register blocks reach into beside an image of `width`.
  Index left() const {
    const Index reach = ceil_div(std::max<Index>(pad_w, 0), dilation_w);
    return std::min(reach, (MAX_COLS - 1) * stride_w);
  }
  Index right(Index width) const {
    const Index last = ((out_width - 1) * stride_w + kernel_w - 1 - pad_w) / dilation_w;
    return std::clamp<Index>(last - (width - 1), 0, (MAX_COLS - 1) * stride_w);
  }
};

inline Index modulo(Index a, Index b) { return (a % b + b) % b; }

// First tap >= 0 whose input position from `start` divides by `dilation` and is >= `lowest`.
inline Index first_tap(Index start, Index dilation, Index lowest) {
  return std::max<Index>(lowest * dilation - start, modulo(-start, dilation));
}

inline Index plan_columns(const Correlation& c, Index width, Columns* plan) {
  Index planned = 0;
  for (Index residue = 0; residue < std::min(c.dilation_w, c.out_width); ++residue) {
    const Index outputs = ceil_div(c.out_width - residue, c.dilation_w);
    const Index groups = ceil_div(outputs, MAX_COLS);
    for (Index g = 0; g < groups; ++g) {
      const auto [begin, count] = part(outputs, groups, g);
      const Index out = residue + begin * c.dilation_w, start = out * c.stride_w - c.pad_w;
      // The last output needs a tap >= lowest, the first one a tap inside the image.
      const Index lowest = -(count - 1) * c.stride_w;
      const Index tap = first_tap(start, c.dilation_w, lowest);
      const Index beyond = std::min(c.kernel_w, (width - 1) * c.dilation_w - start + 1);
      const Index tap_count = beyond > tap ? ceil_div(beyond - tap, c.dilation_w) : 0;
      plan[planned++] = {out, count, tap, tap_count, (start + tap) / c.dilation_w};
    }
  }
  return planned;
}

// Weights as [block][input channel][tap row][tap column][channel in block]: read in order.
struct Packing {
  const float* weight;
  Index out_stride, in_stride, in_channels;
  bool flipped;
};

inline void pack(const Correlation& c, const Packing& from, float* packed) {
  const Index taps = c.kernel_h * c.kernel_w;
  float* to = packed;
  for (Index block = 0; block < c.blocks(); ++block) {
    const auto [first, rows] = part(c.out_channels, c.blocks(), block);
    for (Index i = 0; i < from.in_channels; ++i)
      for (Index k = 0; k < taps; ++k)
        for (Index r = 0; r < rows; ++r)
          *to++ = from.weight[(first + r) * from.out_stride + i * from.in_stride +
                              (from.flipped ? taps - 1 - k : k)];
  }
}

// What one register block reads and writes.
struct Tile {
  const Vec* in;
  Index in_plane, in_row, in_channels, stride;
  const float* weight;
  Index weight_plane, weight_row, weight_step;
  Index tap_rows, tap_cols;
  const float* bias;
  float slope;
  Vec* out;
  Index out_plane, out_step;
};

template <int ROWS, int COLS>
void correlate_tile(const Tile& t) {
  Vec sums[ROWS][COLS] = {};
  for (Index c = 0; c < t.in_channels; ++c) {
    for (Index i = 0; i < t.tap_rows; ++i) {
      const Vec* in = t.in + c * t.in_plane + i * t.in_row;
      const float* weight = t.weight + c * t.weight_plane + i * t.weight_row;
      for (Index j = 0; j < t.tap_cols; ++j, ++in, weight += t.weight_step) {
        Vec pixels[COLS];
#pragma GCC unroll 8
        for (int k = 0; k < COLS; ++k) pixels[k] = in[k * t.stride], keep(pixels[k]);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
          const Vec w = broadcast(weight[r]);
#pragma GCC unroll 8
          for (int k = 0; k < COLS; ++k) sums[r][k] += w * pixels[k];
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int k = 0; k < COLS; ++k) {
      Vec value = sums[r][k];
      if (t.bias != nullptr) value += broadcast(t.bias[r]);
      if (t.slope != 1.0f) value = activated(value, t.slope);
      t.out[r * t.out_plane + k * t.out_step] = value;
    }
}

using TileKernel = void (*)(const Tile&);
constexpr auto TILE_KERNELS = table_of<MAX_ROWS * MAX_COLS>(
    [](auto i) -> TileKernel { return correlate_tile<i / MAX_COLS + 1, i % MAX_COLS + 1>; });

// One block of output channels on one group of rows, and their way back into NCHW.
struct CorrelationTask {
  const Correlation& c;
  Index groups;  // of rows, for each block of channels
  const Image& in;
  const Columns* plan;
  Index planned;
  const float *packed, *bias;
  float slope;
  float* samples;
  Places<uint8_t> places;  // of the largest in their windows; null: nobody wants to know
  Index valid;

  void operator()(Index task, Vec* out) const {
    const auto [first, rows] = part(c.out_channels, c.blocks(), task / groups);
    const auto [from, count] = part(c.kept_height(), groups, task % groups);
    const Index y0 = from * c.window, height = count * c.window;
    Tile tile = {};
    tile.in_plane = in.plane(), tile.in_row = in.row(), tile.in_channels = in.channels;
    tile.stride = c.stride_w;
    tile.weight_plane = c.kernel_h * c.kernel_w * rows;
    tile.weight_row = c.dilation_h * c.kernel_w * rows;
    tile.weight_step = c.dilation_w * rows;
    tile.bias = bias == nullptr ? nullptr : bias + first;
    tile.slope = c.window == 2 ? 1.0f : slope;  // of windows, only the largest is activated
    tile.out_plane = height * c.out_width, tile.out_step = c.dilation_w;
    const float* weight = packed + first * in.channels * c.kernel_h * c.kernel_w;
    for (Index y = 0; y < height; ++y)
      row(tile, y0 + y, rows, weight, out + y * c.out_width);
    const Index pixels = c.kept_height() * c.kept_width();
    for (Index r = 0; r < rows; ++r) {
      Vec* plane = out + r * tile.out_plane;
      const Index at = (first + r) * pixels + from * c.kept_width();
      if (c.window == 2)
        pool_lanes(plane, count, c.out_width, slope == 0.0f, places.from(0, at));
      from_lanes(plane, count * c.kept_width(), samples + at, c.out_channels * pixels, valid);
    }
  }

  void row(Tile& tile, Index y, Index rows, const float* weight, Vec* out) const {
    const Index start = y * c.stride_h - c.pad_h;
    const Index tap = first_tap(start, c.dilation_h, 0);
    const Index beyond = std::min(c.kernel_h, (in.height - 1) * c.dilation_h - start + 1);
    tile.tap_rows = beyond > tap ? ceil_div(beyond - tap, c.dilation_h) : 0;
    // Without a tap there is no row to point at.
    const Vec* from = in.at(0, tile.tap_rows > 0 ? (start + tap) / c.dilation_h : 0);
    for (Index p = 0; p < planned; ++p) {
      const Columns& columns = plan[p];
      tile.in = from + columns.in;
      tile.weight = weight + (tap * c.kernel_w + columns.tap) * rows;
      tile.tap_cols = columns.tap_count;
      tile.out = out + columns.out;
      TILE_KERNELS[(rows - 1) * MAX_COLS + columns.count - 1](tile);
    }
  }
};

}  // namespace ABELE_LENGTH
}  // namespace abele
