// The products of transformed tiles with transformed weights.
#pragma once

#include "matrix_tile.h"
#include "winograd.h"

namespace abele::winograd::ABELE_LENGTH {

// Channels whose products are summed in registers, so that what they meet stays in the nearest
// cache.
constexpr Index DEPTH = 128;
constexpr Index PANEL = TILE_COLS * LANES;

// The weights as [16][panel][in][columns of the panel], for the way back turned around.
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

template <int DEEP>
void multiply_shallow(const Weights& weights, const float* inputs, Index count, float* products) {
  const Index in = pitch(weights.in), out = pitch(weights.out);
  for (Index p = 0; p < POINTS; ++p)
    for (Index first = 0; first < padded(weights.out); first += PANEL) {
      const float *a = inputs + p * matrix_size(count, weights.in), *b = weights.panel(p, first);
      float* c = products + p * matrix_size(count, weights.out) + first;
      if (padded(weights.out) - first < PANEL)
        shallow_rows<DEEP, 1, HIGH_ROWS>(a, in, b, c, out, count);
      else
        shallow_rows<DEEP, TILE_COLS, TILE_ROWS>(a, in, b, c, out, count);
    }
}

// Whether `multiply` sums in the order of `shallow_rows` for HIGH_ROWS tiles and more.
inline bool is_shallow(const Weights& weights) {
  return weights.in == 8 || weights.in == 16 || weights.in == 24;
}

inline void multiply(const Weights& weights, const float* inputs, Index count, float* products) {
  if (count >= HIGH_ROWS) {
    if (weights.in == 8) return multiply_shallow<8>(weights, inputs, count, products);
    if (weights.in == 16) return multiply_shallow<16>(weights, inputs, count, products);
    if (weights.in == 24) return multiply_shallow<24>(weights, inputs, count, products);
  }
  const Index in = pitch(weights.in), out = pitch(weights.out);
  for (Index p = 0; p < POINTS; ++p)
    for (Index first = 0; first < padded(weights.out); first += PANEL) {
      const Index columns = std::min(PANEL, padded(weights.out) - first);
      for (Index k = 0; k < weights.in; k += DEPTH) {
        const MatrixTile tile = {std::min(DEPTH, weights.in - k),
                                 inputs + p * matrix_size(count, weights.in) + k, in, 1,
                                 weights.panel(p, first) + k * columns, columns,
                                 products + p * matrix_size(count, weights.out) + first, out,
                                 DEPTH * columns, k > 0};
        multiply_rows(tile, count, columns / LANES);
      }
    }
}

}  // namespace abele::winograd::ABELE_LENGTH
