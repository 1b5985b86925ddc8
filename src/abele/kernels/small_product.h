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

// Of a tile: its sums and one row of b fill the registers.
constexpr int SMALL_ROWS = PRODUCT_ROWS, SMALL_VECTORS = 2;

// c[rows, vectors] (+)= a[rows, inner] b[inner, vectors], with the sums of larger products.
template <class Numbers, bool in_rows, int rows, int vectors>
void small_tile(Index inner, const float* a, Index a_step, const float* b, Index b_step, float* c,
                Index c_row, bool add) {
  const auto keep_sum = [=](int i, int v, Vec sum) {
    float* to = c + i * c_row + v * LANES;
    store(to, add ? load(to) + sum : sum);
  };
  tile_sums<Numbers, in_rows, rows, vectors, false>(inner, a, a_step, b, b_step, nullptr, c_row,
                                                    nullptr, 0, keep_sum);
}

using SmallTile = void (*)(Index, const float*, Index, const float*, Index, float*, Index, bool);
// By vectors; two of them by whether elements of a's rows are neighbours.
using SmallTiles = std::array<std::array<SmallTile, SMALL_ROWS>, SMALL_VECTORS>;
template <class Numbers, bool in_rows, int... rows>
constexpr SmallTiles small_tiles(std::integer_sequence<int, rows...>) {
  return {{{&small_tile<Numbers, in_rows, rows + 1, 1>...},
           {&small_tile<Numbers, in_rows, rows + 1, 2>...}}};
}
template <class Numbers>
constexpr SmallTiles SMALL_TILES[] = {small_tiles<Numbers, false>(ALL_ROWS),
                                      small_tiles<Numbers, true>(ALL_ROWS)};

// A tile of c; b has whole vectors.
inline void small_block(Index rows, Index columns, Index inner, Matrix a, Matrix b, float* c,
                        Index c_row, bool add, const SmallTiles* all = SMALL_TILES<Floats>) {
  const SmallTiles& tiles = all[a.column == 1];
  const Index step = long_step(a);
  if (columns % LANES == 0)
    return tiles[columns / LANES - 1][rows - 1](inner, a.data, step, b.data, b.row, c, c_row, add);
  float sums[SMALL_ROWS * PRODUCT_COLUMNS];
  tiles[columns / LANES][rows - 1](inner, a.data, step, b.data, b.row, sums, PRODUCT_COLUMNS,
                                   false);
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < columns; ++j) {
      const float sum = sums[i * PRODUCT_COLUMNS + j];
      c[i * c_row + j] = add ? c[i * c_row + j] + sum : sum;
    }
}

// c[rows, columns] (+)= a[rows, inner] b[inner, columns]; the columns are whole vectors.
inline void multiply_small(Matrix a, Matrix b, Index rows, Index columns, Index inner, float* c,
                           Index c_row, bool add) {
  const Index groups = ceil_div(rows, SMALL_ROWS);
  for (Index column = 0; column < columns; column += PRODUCT_COLUMNS)
    for (Index i = 0; i < groups; ++i) {
      const Part high = part(rows, groups, i);
      small_block(high.size, std::min(PRODUCT_COLUMNS, columns - column), inner,
                  a.from(high.begin, 0), b.from(0, column), c + high.begin * c_row + column, c_row,
                  add);
    }
}

}  // namespace abele
