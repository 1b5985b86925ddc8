// Sums of products with few results, c = a b + a' b' + ..., whose factors both lie along the inner dimension,
// which is long: gradients of small weights, summed over images. Nothing is packed: registers hold neighbours of the inner dimension, and a
// tile of c is a register for each of its elements, whose lanes are summed at the end.
#pragma once

#include <algorithm>

#include "lanes.h"
#include "product.h"

namespace abele::long_sums {

// As many sums as registers hold, with a row of the one factor and some columns of the other.
constexpr int ROWS = LANES == 16 ? 6 : 3, COLUMNS = 4, TILE = ROWS * COLUMNS;
// Of the inner dimension: so much of all rows and columns stays in the second-level cache.
constexpr Index PIECE = 1024;
// A shorter sum is not worth its last step. With more results, packing costs little beside them.
constexpr Index LEAST_INNER = 1024, MOST_RESULTS = 4096;

inline bool has_long_sums(const AbeleProduct& p) {
  const bool summed = p.count > 1 && p.c_next == 0;
  const bool wide = p.a_type == ABELE_FLOAT32 && p.b_type == ABELE_FLOAT32;
  return summed && wide && !p.b_packed && p.a_column == 1 && p.b_row == 1 && p.inner >= LEAST_INNER &&
         p.rows * p.columns <= MOST_RESULTS;
}

// A tile of c: its rows and columns that do not exist are its first ones, and are not written.
struct Tile {
  Index row, column;
  const float *left[ROWS], *right[COLUMNS];

  Tile(const AbeleProduct& p, Index index) {
    const Index across = (p.columns + COLUMNS - 1) / COLUMNS;
    row = index / across * ROWS, column = index % across * COLUMNS;
  }
  void at(const AbeleProduct& p, const float* a, const float* b) {
    for (int r = 0; r < ROWS; ++r) left[r] = a + (row + (row + r < p.rows ? r : 0)) * p.a_row;
    for (int c = 0; c < COLUMNS; ++c)
      right[c] = b + (column + (column + c < p.columns ? c : 0)) * p.b_column;
  }
};

template <class Load>
inline void add(const Tile& tile, Vec* sums, Load load) {
  Vec b[COLUMNS];
  for (int c = 0; c < COLUMNS; ++c) b[c] = load(tile.right[c]);
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r) {
    const Vec a = load(tile.left[r]);
#pragma GCC unroll 4
    for (int c = 0; c < COLUMNS; ++c) sums[r * COLUMNS + c] += a * b[c];
  }
}

// A piece of the inner dimension, and how far from it the next piece of either factor lies, or 0. Rows
// and columns lie far apart, so that a processor does not foresee which lines are next.
struct Piece {
  Index begin, end, left, right;
};

// Adds the products of a piece, and fetches the next one of some rows or columns.
inline void add_piece(const Tile& tile, const Piece& piece, Vec* sums) {
  Vec own[TILE] = {};
  Index k = piece.begin;
  for (; k + LANES <= piece.end; k += LANES) {
    if (piece.left)
      for (int r = 0; r < ROWS; ++r) __builtin_prefetch(tile.left[r] + piece.left + k, 0, 2);
    if (piece.right)
      for (int c = 0; c < COLUMNS; ++c) __builtin_prefetch(tile.right[c] + piece.right + k, 0, 2);
    add(tile, own, [=](const float* from) { return load(from + k); });
  }
  if (k < piece.end)
    add(tile, own, [=](const float* from) { return load_some(from + k, piece.end - k); });
  for (int i = 0; i < TILE; ++i) sums[i] += own[i];
}

// The tiles from `first` to `last`, whose sums are in the order of the inner dimension.
inline void multiply_tiles(const AbeleProduct& p, const float* a, const float* b, float* c,
                           Index first, Index last, Vec* sums) {
  std::fill_n(sums, (last - first) * TILE, Vec{});
  for (Index i = 0; i < p.count; ++i)
    for (Index begin = 0; begin < p.inner; begin += PIECE)
      for (Index index = first; index < last; ++index) {
        Tile tile(p, index);
        tile.at(p, a + i * p.a_next, b + i * p.b_next);
        Piece piece{begin, std::min(p.inner, begin + PIECE), 0, 0};
        const bool within = piece.end < p.inner, more = within || i + 1 < p.count;
        if (more && (tile.column == 0 || index == first))
          piece.left = within ? PIECE : p.a_next - begin;
        if (more && tile.row == Tile(p, first).row)
          piece.right = within ? PIECE : p.b_next - begin;
        add_piece(tile, piece, sums + (index - first) * TILE);
      }
  for (Index index = first; index < last; ++index) {
    const Tile tile(p, index);
    float totals[TILE];
    sum_lanes(sums + (index - first) * TILE, TILE, totals);
    for (Index r = 0; r < std::min<Index>(ROWS, p.rows - tile.row); ++r)
      for (Index k = 0; k < std::min<Index>(COLUMNS, p.columns - tile.column); ++k) {
        float& to = c[(tile.row + r) * p.c_row + tile.column + k];
        to = totals[r * COLUMNS + k] + (p.added ? to : 0.0f);
      }
  }
}

inline Index tiles_of(const AbeleProduct& p) {
  return ((p.rows + ROWS - 1) / ROWS) * ((p.columns + COLUMNS - 1) / COLUMNS);
}

}  // namespace abele::long_sums
