// The products of transformed tiles with transformed weights.
#pragma once

#include "matrix_tile.h"
#include "winograd.h"

namespace abele::winograd::ABELE_LENGTH {

// Channels whose products are summed in registers, so that what they meet stays in the nearest
// cache.
constexpr Index DEPTH = ABELE_WINOGRAD_DEPTH;
constexpr Index PANEL = TILE_COLS * LANES;

// The weights as [points][panel][in][columns of the panel], for the way back turned around.
struct Weights {
  Index in, out;
  const float* data;
  const float* panel(Index point, Index first) const {
    return data + (point * padded(out) + first) * in;
  }
};

// What few channels leave of a product: its depth is known to the compiler, and nothing is chosen for
// each tile, which takes as long as the sums themselves. The last rows may be computed twice.
template <int DEEP, int COLS, int ROWS>
void shallow_rows(const float* a, Index a_row, const float* b, float* c, Index c_row, Index rows) {
  for (Index r = 0; r < rows; r += ROWS) {
    const Index first = std::min(r, rows - ROWS);
    const float *from = a + first * a_row, *w = b;
    Sums<ROWS, COLS> sums = {};
    for (int k0 = 0; k0 < DEEP; k0 += 8, from += 8)
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k, w += COLS * LANES) {
        Vec columns[COLS];
#pragma GCC unroll 4
        for (int v = 0; v < COLS; ++v) columns[v] = load(w + v * LANES), keep(columns[v]);
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i) {
          const Vec value = broadcast(from[i * a_row + k]);
#pragma GCC unroll 4
          for (int v = 0; v < COLS; ++v) sums[i][v] += value * columns[v];
        }
      }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < COLS; ++v) store(c + (first + i) * c_row + v * LANES, sums[i][v]);
  }
}

// Whether `multiply` sums in the order of `shallow_rows` for HIGH_ROWS tiles and more.
inline bool is_shallow(const Weights& weights) {
  return weights.in == 8 || weights.in == 16 || weights.in == 24;
}

// The columns of a panel, of one matrix: `a` has `count` rows.
inline void multiply(const Weights& weights, Index point, Index first, const float* a, Index count,
                     float* c) {
  const Index in = pitch(weights.in), out = pitch(weights.out);
  const Index columns = std::min(PANEL, padded(weights.out) - first);
  const float* b = weights.panel(point, first);
  const auto shallow = [&](auto depth) {
    constexpr int deep = decltype(depth)::value;
    if (columns < PANEL) return shallow_rows<deep, 1, HIGH_ROWS>(a, in, b, c + first, out, count);
    shallow_rows<deep, TILE_COLS, TILE_ROWS>(a, in, b, c + first, out, count);
  };
  if (count >= HIGH_ROWS) {
    if (weights.in == 8) return shallow(std::integral_constant<int, 8>());
    if (weights.in == 16) return shallow(std::integral_constant<int, 16>());
    if (weights.in == 24) return shallow(std::integral_constant<int, 24>());
  }
  for (Index k = 0; k < weights.in; k += DEPTH) {
    const MatrixTile tile = {std::min(DEPTH, weights.in - k), a + k, in, 1, b + k * columns, columns,
                             c + first, out, DEPTH * columns, k > 0};
    multiply_rows(tile, count, columns / LANES);
  }
}

}  // namespace abele::winograd::ABELE_LENGTH
