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

inline void multiply(const Weights& weights, const float* inputs, Index count, float* products) {
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
