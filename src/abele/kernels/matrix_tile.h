// A block of a matrix product that stays in registers: what convolutions with many channels run on.
// tiles.h says why large products have another one.
//
// c[r][v] (+)= sum over k of a[r][k] * b[k][v]. Each a is broadcast, each b is a register of columns.
// The order of a sum follows from k alone: how rows and columns are cut does not change its bits.
#pragma once

#include "lanes.h"

namespace abele {
inline namespace ABELE_LENGTH {

// Rows and registers of columns: sums and totals of both, and the operands, fill the registers.
constexpr int TILE_ROWS = REGISTERS == 32 ? 7 : 3, TILE_COLS = 2;
// Of tiles with a single register of columns.
constexpr int HIGH_ROWS = 2 * TILE_ROWS;
// So many products are summed before they join the total. One long sum of 512 would have three times
// the error; the additions run beside the multiplications.
constexpr Index RUN = 16;

// Strides are in floats; columns of b and c lie together.
struct MatrixTile {
  Index depth;
  const float* a;
  Index a_row, a_step;
  const float* b;
  Index b_step;
  float* c;
  Index c_row;
  Index ahead;  // how far after b lies what is read next; 0: nobody knows
  bool add;     // to what c holds
};

template <int ROWS, int COLS>
using Sums = Vec[ROWS][COLS];

// sums += the products of one k; a and b move on to the next.
template <int ROWS, int COLS>
inline void add_products(const MatrixTile& t, const float*& a, const float*& b,
                         Sums<ROWS, COLS>& sums) {
  Vec columns[COLS];
#pragma GCC unroll 4
  for (int v = 0; v < COLS; ++v) {
    columns[v] = load(b + v * LANES);
    keep(columns[v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    const Vec value = broadcast(a[r * t.a_row]);
#pragma GCC unroll 4
    for (int v = 0; v < COLS; ++v) sums[r][v] += value * columns[v];
  }
  if (t.ahead > 0)
    for (int v = 0; v < COLS; ++v) __builtin_prefetch(b + t.ahead + v * LANES);
  a += t.a_step;
  b += t.b_step;
}

template <int ROWS, int COLS>
void multiply_tile(const MatrixTile& tile) {
  const MatrixTile t = tile;
  Sums<ROWS, COLS> totals = {}, last = {};
  const float *a = t.a, *b = t.b;
  Index left = t.depth;
  for (; left > RUN; left -= RUN) {
    Sums<ROWS, COLS> sums = {};
#pragma GCC unroll 16
    for (Index k = 0; k < RUN; ++k) add_products<ROWS, COLS>(t, a, b, sums);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < COLS; ++v) totals[r][v] += sums[r][v];
  }
#pragma GCC unroll 4
  for (; left > 0; --left) add_products<ROWS, COLS>(t, a, b, last);
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < COLS; ++v) {
      float* to = t.c + r * t.c_row + v * LANES;
      const Vec total = totals[r][v] + last[r][v];
      store(to, t.add ? load(to) + total : total);
    }
}

using MatrixKernel = void (*)(const MatrixTile&);
constexpr auto HIGH_KERNELS =
    table_of<HIGH_ROWS>([](auto i) -> MatrixKernel { return multiply_tile<i + 1, 1>; });
constexpr auto WIDE_KERNELS =
    table_of<TILE_ROWS>([](auto i) -> MatrixKernel { return multiply_tile<i + 1, 2>; });

// All rows of a block, for `cols` registers of columns; `t` is its first tile.
inline void multiply_rows(MatrixTile t, Index rows, Index cols) {
  const Index groups = ceil_div(rows, cols == 1 ? HIGH_ROWS : TILE_ROWS);
  const float* a = t.a;
  float* c = t.c;
  for (Index g = 0; g < groups; ++g) {
    const auto [first, count] = part(rows, groups, g);
    t.a = a + first * t.a_row;
    t.c = c + first * t.c_row;
    (cols == 1 ? HIGH_KERNELS[count - 1] : WIDE_KERNELS[count - 1])(t);
  }
}

}  // namespace ABELE_LENGTH
}  // namespace abele
