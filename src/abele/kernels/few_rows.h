// Products of few rows with a transposed matrix, as linear layers have them for small batches.
//
// Packing such a matrix would take about as long as multiplying. Here it is read where it lies: rows
// of a are the lanes of a vector, and each element of b is broadcast to all of them.
#pragma once

#include "tiles.h"

namespace abele {

// So many columns of b at a time hide how long an addition takes.
constexpr int AT_ONCE = 8;

// sums[j][row] (+)= sum over p < k of b[j * step + p] a[p][row].
template <int columns>
void few_rows_tile(Index k, const float* __restrict a, const float* __restrict b, Index step,
                   float* __restrict to, bool add) {
  Vec sums[columns] = {};
  for (Index p = 0; p < k; ++p) {
    const Vec rows = load(a + p * LANES);
#pragma GCC unroll 8
    for (int j = 0; j < columns; ++j) {
      keep_alone<columns>(sums[j]);
      sums[j] += broadcast(b[j * step + p]) * rows;
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < columns; ++j) {
    const Vec before = add ? load(to + j * LANES) : Vec{};
    store(to + j * LANES, add ? before + sums[j] : sums[j]);
  }
}

using FewRowsTile = void (*)(Index, const float*, const float*, Index, float*, bool);
constexpr auto FEW_ROWS_TILES =
    table_of<AT_ONCE>([](auto i) -> FewRowsTile { return few_rows_tile<i + 1>; });

// Rows of a as lanes, [inner][LANES] for each vector of them; lanes without a row are zero.
inline void pack_lanes(Matrix a, Index rows, Index inner, float* to) {
  for (Index first = 0; first < rows; first += LANES, to += LANES * inner) {
    const Index count = std::min<Index>(LANES, rows - first);
    pack_turned<false>(count, inner, a.from(first, 0).data, a.row, LANES, to);
    for (Index p = 0; count < LANES && p < inner; ++p)
      std::fill(to + p * LANES + count, to + (p + 1) * LANES, 0.0f);
  }
}

}  // namespace abele
