// Products of small matrices, as the heads of attention are, all of which a cache near the processor
// holds: packing would take a tenth of their time, so both factors are read where they lie. For that,
// elements of a row of the right factor have to be neighbours; turning it pays for enough rows.
#pragma once

#include "tiles.h"

namespace abele {

// With longer sides, or more multiply-adds, packing costs less than strides do.
constexpr Index MOST_SMALL = 128, MOST_ADDS = Index{1} << 19, LEAST_TURNED = 32;
inline bool is_small(Index rows, Index columns, Index inner) {
  const bool small = std::max({rows, columns, inner}) <= MOST_SMALL;
  return small && rows * columns * inner <= MOST_ADDS && columns % LANES == 0;
}

// Of a tile that reads each row of a at an address of its own.
constexpr int SMALL_ROWS = PRODUCT_ROWS / 2, SMALL_VECTORS = 2;

// c[rows, vectors] (+)= a[rows, inner] b[inner, vectors], with the sums of larger products.
template <int rows, int vectors>
void small_tile(Index inner, Matrix a, Matrix b, float* c, Index c_row, bool add) {
  Vec sums[rows][vectors] = {};
#pragma GCC unroll 4
  for (Index p = 0; p < inner; ++p) {
    Vec columns[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      columns[v] = load(b.data + v * LANES);
      keep(columns[v]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      Vec value = broadcast(a.data[i * a.row]);
      keep(value);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[i][v] += value * columns[v];
    }
    a.data += a.column, b.data += b.row;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      float* to = c + i * c_row + v * LANES;
      store(to, add ? load(to) + sums[i][v] : sums[i][v]);
    }
}

using SmallTile = void (*)(Index, Matrix, Matrix, float*, Index, bool);
template <int vectors, int... rows>
constexpr std::array<SmallTile, sizeof...(rows)> small_tiles(std::integer_sequence<int, rows...>) {
  return {&small_tile<rows + 1, vectors>...};
}
constexpr auto ALL_SMALL_ROWS = std::make_integer_sequence<int, SMALL_ROWS>();
constexpr std::array<SmallTile, SMALL_ROWS> SMALL_TILES[] = {small_tiles<1>(ALL_SMALL_ROWS),
                                                             small_tiles<2>(ALL_SMALL_ROWS)};

// c[rows, columns] (+)= a[rows, inner] b[inner, columns]; the columns are whole vectors.
inline void multiply_small(Matrix a, Matrix b, Index rows, Index columns, Index inner, float* c,
                           Index c_row, bool add) {
  const Index groups = ceil_div(rows, SMALL_ROWS);
  for (Index column = 0; column < columns; column += SMALL_VECTORS * LANES) {
    const Index vectors = std::min<Index>(SMALL_VECTORS, (columns - column) / LANES);
    for (Index i = 0; i < groups; ++i) {
      const Part high = part(rows, groups, i);
      SMALL_TILES[vectors - 1][high.size - 1](inner, a.from(high.begin, 0), b.from(0, column),
                                              c + high.begin * c_row + column, c_row, add);
    }
  }
}

}  // namespace abele
