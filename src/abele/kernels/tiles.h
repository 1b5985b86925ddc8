// Tiles of a product of matrices, and the order in which they read their operands.
//
// These read packed columns of the second operand, which a large product reads many times, and hold
// one sum per element. Those of matrix_tile.h read columns where they lie and sum in short runs: sums
// over pixels are long.
#pragma once

#include <array>
#include <utility>

#include "lanes.h"

namespace abele {

// Elements at data[i * row + j * column]; one of the two steps is 1.
struct Matrix {
  const float* data;
  Index row, column;
  Matrix from(Index i, Index j) const { return {data + i * row + j * column, row, column}; }
};

// Turns of a tile's inner loop at a time: where one has few multiply-adds, as with 16 registers, counting
// turns and leaving the loop take some percent of them.
constexpr int TURNS = REGISTERS == 16 ? 2 : 1;

// For what is read soon, and for the next tile in the second-level cache.
constexpr int SOON = 3, LATER = 2;

// Of a tile: its sums and one row of b fill the registers. Packed columns of a begin with a line.
constexpr Index PRODUCT_ROWS = (REGISTERS - 4) / 2, PRODUCT_COLUMNS = 2 * LANES;
constexpr Index PACKED_ROWS = (PRODUCT_ROWS + LANES - 1) / LANES * LANES;

// So many products are added in a register before they join c. Longer sums are less accurate.
constexpr Index LONGEST_SUM = 192;
// Where c is one row, libraries compute dots, in as many sums as several registers have lanes: there, two
// sums of so many products each join the total in turn.
constexpr Index SHORT_SUM = 8;

// What is packed next, where a tile asks for it: packing would have to wait, while multiplying leaves
// the memory idle. One line for each element along the inner dimension, without a condition: that
// would cost more than it gains. Where all of b has been packed before, asking gains nothing, and with
// few multiply-adds for each element it takes some percent of them.
constexpr bool ASKS_AFTER_PACKING = REGISTERS > 16;
struct Ahead {
  const float* line;
  Index step;
};

// A column of a tile's rows, whose elements are neighbours.
class WholeColumn {
 public:
  WholeColumn(const float* a, Index step) : a_(a), step_(step) {}
  float operator[](int row) const { return a_[row]; }
  void next() { a_ += step_; }

 private:
  const float* a_;
  Index step_;
};

// A column of rows that each have neighbours. An address serves several rows, and the compiler is not
// to know that addresses follow from each other: it would keep one per row, in memory.
template <int rows>
class ColumnOfRows {
 public:
  ColumnOfRows(const float* a, Index step) : step_(step) {
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i) first_[i] = a + i * TOGETHER * step_;
  }
  float operator[](int row) const { return first_[row / TOGETHER][row % TOGETHER * step_]; }
  void next() {
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i) {
      ++first_[i];
      asm("" : "+r"(first_[i]));
    }
  }

 private:
  static constexpr int TOGETHER = 3, COUNT = (rows + TOGETHER - 1) / TOGETHER;
  const float* first_[COUNT];
  Index step_;
};

// Of a tile's two steps through a, the one that is not 1.
inline Index long_step(Matrix a) { return a.column == 1 ? a.row : a.column; }

// What is done with sums before they are stored; a NaN stays one.
struct Finish {
  const float *bias, *added;  // of the first column, and where c begins; the second may be null
  float low, high;
};

// How sums of products grow: those of float32 numbers.
struct Floats {
  static void add(Vec& sum, Vec value, Vec column) { sum += value * column; }
};

// c[rows, vectors] (+)= a[rows, k] b[k, vectors]. `asks` for what is ahead, and for c unless that is null.
// Arguments are numbers: structures would be copied on the stack, in larger pieces than they were written
// there, for which a processor waits until all stores before are done, those of the tile before, too.
// `store(i, v, sum)` gets a row's sums.
template <class Numbers, bool in_rows, int rows, int vectors, bool asks, class Store>
__attribute__((always_inline)) inline void tile_sums(Index k, const float* a, Index a_step,
                                                     const float* __restrict b, Index b_step,
                                                     float* __restrict c, Index c_row,
                                                     const float* ahead, Index ahead_step,
                                                     const Store& store) {
  std::conditional_t<in_rows, ColumnOfRows<rows>, WholeColumn> column(a, a_step);
  Vec sums[rows][vectors] = {};
  // Rows that lie far apart come from memory one by one, unless they are asked for before; where they
  // are only written, too.
#pragma GCC unroll 16
  for (int i = 0; c != nullptr && i < rows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) __builtin_prefetch(c + i * c_row + v * LANES, 1);
#pragma GCC unroll TURNS
  for (Index p = 0; p < k; ++p) {
    Vec columns[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) columns[v] = load(b + v * LANES);
    if (asks) {
      __builtin_prefetch(ahead, 0, LATER);
      ahead += ahead_step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      Vec value = broadcast(column[i]);
      keep(value);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        keep_alone<rows * vectors>(sums[i][v]);
        Numbers::add(sums[i][v], value, columns[v]);
      }
    }
    column.next();
    b += b_step;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) store(i, v, sums[i][v]);
}

template <bool in_rows, int rows, int vectors, bool add, bool asks>
void tile(Index k, const float* a, Index a_step, const float* __restrict b, float* __restrict c,
          Index c_row, const float* ahead, Index ahead_step) {
  const auto keep_sum = [=](int i, int v, Vec sum) {
    float* to = c + i * c_row + v * LANES;
    store(to, add ? load(to) + sum : sum);
  };
  tile_sums<Floats, in_rows, rows, vectors, asks>(k, a, a_step, b, PRODUCT_COLUMNS, c, c_row, ahead,
                                                  ahead_step, keep_sum);
}

// The last part of the inner dimension: c is complete. `added` lies as c does.
template <bool in_rows, int rows, bool add>
void last_tile(Index k, const float* a, Index a_step, const float* __restrict b,
               float* __restrict c, Index c_row, const float* ahead, Index ahead_step,
               const float* bias, const float* added, float low, float high) {
  const auto keep_sum = [=](int i, int v, Vec sum) {
    const Index at = i * c_row + v * LANES;
    if (add) sum = load(c + at) + sum;
    sum += load(bias + v * LANES);
    if (added != nullptr) sum += load(added + at);
    store(c + at, bounded(sum, broadcast(low), broadcast(high)));
  };
  tile_sums<Floats, in_rows, rows, 2, ASKS_AFTER_PACKING>(k, a, a_step, b, PRODUCT_COLUMNS, c, c_row,
                                                          ahead, ahead_step, keep_sum);
}

using LastTile = void (*)(Index, const float*, Index, const float*, float*, Index, const float*,
                          Index, const float*, const float*, float, float);
template <bool in_rows, bool add>
constexpr auto LAST_OF =
    table_of<PRODUCT_ROWS>([](auto i) -> LastTile { return last_tile<in_rows, i + 1, add>; });

using Tile = void (*)(Index, const float*, Index, const float*, float*, Index, const float*, Index);
template <bool in_rows, int vectors, bool add, bool asks>
constexpr auto TILES_FOR =
    table_of<PRODUCT_ROWS>([](auto i) -> Tile { return tile<in_rows, i + 1, vectors, add, asks>; });
constexpr auto ALL_ROWS = std::make_integer_sequence<int, PRODUCT_ROWS>();
// By whether elements of a's rows are neighbours, c is added to, and the tile asks for what is ahead.
constexpr std::array<Tile, PRODUCT_ROWS> TILES[][2][2] = {
    {{TILES_FOR<false, 2, false, false>, TILES_FOR<false, 2, false, true>},
     {TILES_FOR<false, 2, true, false>, TILES_FOR<false, 2, true, true>}},
    {{TILES_FOR<true, 2, false, false>, TILES_FOR<true, 2, false, true>},
     {TILES_FOR<true, 2, true, false>, TILES_FOR<true, 2, true, true>}}};
constexpr std::array<LastTile, PRODUCT_ROWS> LAST_TILES[][2] = {
    {LAST_OF<false, false>, LAST_OF<false, true>}, {LAST_OF<true, false>, LAST_OF<true, true>}};
constexpr std::array<Tile, PRODUCT_ROWS> HALF_TILES[] = {TILES_FOR<false, 1, false, true>,
                                                         TILES_FOR<true, 1, false, true>};

// All of c's only row that one tile has: c[vectors] (+)= a[k] b[k, vectors]. Each element of b is read once,
// so the next panel of a b that is packed already is asked for here.
template <int vectors, bool packed>
void row_tile(Index k, const float* a, Index a_step, const float* b, float* c, bool add,
              Ahead ahead) {
  Vec totals[vectors] = {};
  const auto products = [&](Index p, Vec* sums) {
    const Vec value = broadcast(a[p * a_step]);
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[v] += value * load(b + p * PRODUCT_COLUMNS + v * LANES);
#pragma GCC unroll 2
    for (Index line = 0; packed && line < vectors * LANES; line += LINE)
      __builtin_prefetch(b + (k + p) * PRODUCT_COLUMNS + line, 0, SOON);
    if (!packed) __builtin_prefetch(ahead.line + p * ahead.step, 0, LATER);
  };
  Index p = 0;
  while (p < k) {
    Vec even[vectors] = {}, odd[vectors] = {};
    const Index end = std::min(k, p + 2 * SHORT_SUM);
    for (; p + 1 < end; p += 2) products(p, even), products(p + 1, odd);
    for (; p < end; ++p) products(p, even);
    for (int v = 0; v < vectors; ++v) totals[v] += even[v] + odd[v];
  }
  for (int v = 0; v < vectors; ++v) {
    float* to = c + v * LANES;
    store(to, add ? load(to) + totals[v] : totals[v]);
  }
}

// The tile of whole columns, or of half of them, of a c that is one row.
template <bool packed>
inline void one_row_tile(Index width, Index k, Matrix a, const float* b, float* c, bool add,
                         Ahead ahead) {
  float sums[PRODUCT_COLUMNS];
  if (width == PRODUCT_COLUMNS)
    return row_tile<2, packed>(k, a.data, a.column, b, c, add, ahead);
  (width <= LANES ? row_tile<1, packed> : row_tile<2, packed>)(k, a.data, a.column, b, sums, false,
                                                               ahead);
  for (Index j = 0; j < width; ++j) c[j] = add ? c[j] + sums[j] : sums[j];
}

// A tile of which c has only `width` columns.
inline void narrow_tile(Index rows, Index width, Index k, Matrix a, const float* b, float* c,
                        Index c_row, bool add, Ahead ahead) {
  float sums[PRODUCT_ROWS * PRODUCT_COLUMNS];
  const bool in_rows = a.column == 1;
  const auto& tiles = width <= LANES ? HALF_TILES[in_rows] : TILES[in_rows][0][1];
  tiles[rows - 1](k, a.data, long_step(a), b, sums, PRODUCT_COLUMNS, ahead.line, ahead.step);
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < width; ++j) {
      const float sum = sums[i * PRODUCT_COLUMNS + j];
      c[i * c_row + j] = add ? c[i * c_row + j] + sum : sum;
    }
}

// The rows of tile `i`; all are as high as possible, and nearly equal.
inline Part tile_rows(Index rows, Index i) { return part(rows, ceil_div(rows, PRODUCT_ROWS), i); }

// -- packing ------------------------------------------------------------------------------------

// Of a weight, a piece of a row is read at a time, so the processor does not see what comes next.
// Where nothing is computed between pieces, packing asks for it.
template <int when>
inline void fetch_lines(const float* line, Index step) {
  for (Index r = 0; r < 4; ++r) __builtin_prefetch(line + r * step, 0, when);
}

// to[p][i] = from[i][p] for i < count, p < k; elements of `from` are neighbours along p.
template <bool fetch>
inline void pack_turned(Index count, Index k, const float* from, Index step, Index width,
                        float* to) {
  // The last four may be some of those before, once more.
  for (Index next = 0; next < count && count >= 4; next += 4) {
    const Index i = std::min(next, count - 4);
    const float* rows = from + i * step;
    Index p = 0;
    for (; p + 4 <= k; p += 4) {
      if (fetch && p % LINE == 0) {
        fetch_lines<SOON>(rows + 4 * step + p, step);
        fetch_lines<LATER>(rows + count * step + p, step);
      }
      Quad a = load_quad(rows + p), b = load_quad(rows + step + p);
      Quad c = load_quad(rows + 2 * step + p), d = load_quad(rows + 3 * step + p);
      transpose(a, b, c, d);
      float* out = to + p * width + i;
      store_quad(out, a), store_quad(out + width, b);
      store_quad(out + 2 * width, c), store_quad(out + 3 * width, d);
    }
    for (; p < k; ++p)
      for (Index r = 0; r < 4; ++r) to[p * width + i + r] = rows[r * step + p];
  }
  for (Index i = 0; i < count && count < 4; ++i)
    for (Index p = 0; p < k; ++p) to[p * width + i] = from[i * step + p];
}

// The same of LANES rows.
template <bool fetch>
inline void pack_turned_lanes(Index k, const float* from, Index step, Index width, float* to) {
  Index p = 0;
#if defined(__AVX512F__)
  for (; p + LANES <= k; p += LANES) {
    for (Index r = LANES; fetch && r < 2 * LANES; ++r)
      __builtin_prefetch(from + r * step + p, 0, LATER);
    turn_lanes(from + p, step, to + p * width, width);
  }
#endif
  pack_turned<fetch>(LANES, k - p, from + p, step, width, to + p * width);
}

// to[p][i] = from[p][i] for i < count, p < k; elements of `from` are neighbours along i.
template <bool fetch>
inline void pack_straight(Index count, Index k, const float* from, Index step, Index width,
                          float* to) {
  Index p = 0;
  if (count == PRODUCT_COLUMNS)
    for (; p < k; ++p) {
      const float* row = from + p * step;
      for (Index i = count; fetch && i < 2 * count; i += LINE)
        __builtin_prefetch(row + i, 0, LATER);
      std::memcpy(to + p * width, row, PRODUCT_COLUMNS * sizeof(float));
    }
  // Nobody reads what a whole vector takes too much.
  if (width == LANES && 2 * count >= LANES)
    for (; p + 1 < k; ++p) std::memcpy(to + p * width, from + p * step, sizeof(Vec));
  for (; p < k; ++p)
    for (Index i = 0; i < count; ++i) to[p * width + i] = from[p * step + i];
}

// Columns of b for tiles, [inner][PRODUCT_COLUMNS]; those that b does not have are zero.
template <bool fetch>
inline void pack_columns(Matrix b, Index inner, Index columns, float* to) {
  if (b.row != 1)
    pack_straight<fetch>(columns, inner, b.data, b.row, PRODUCT_COLUMNS, to);
  else if (columns == PRODUCT_COLUMNS)
    for (Index i = 0; i < PRODUCT_COLUMNS; i += LANES)
      pack_turned_lanes<fetch>(inner, b.data + i * b.column, b.column, PRODUCT_COLUMNS, to + i);
  else
    pack_turned<fetch>(columns, inner, b.data, b.column, PRODUCT_COLUMNS, to);
  for (Index p = 0; columns < PRODUCT_COLUMNS && p < inner; ++p)
    std::fill(to + p * PRODUCT_COLUMNS + columns, to + (p + 1) * PRODUCT_COLUMNS, 0.0f);
}

// Whether tiles read packed rows of a: where rows, or columns, lie a multiple of this apart, those of a
// tile share one set of the first cache, which has eight lines. Rows that all have one there are read
// where they lie, as others are, since packing takes a tenth of a product of 128 columns.
constexpr Index SAME_SET = 1024, LINES_OF_SET = 8;
inline bool packs_rows(Matrix a) {
  const bool fit = a.column == 1 && PRODUCT_ROWS < LINES_OF_SET;
  return (a.column == 1 ? a.row : a.column) % SAME_SET == 0 && !fit;
}

// Rows of a, [inner][PACKED_ROWS] for each tile.
inline void pack_rows(Matrix a, Index rows, Index inner, float* to) {
  // Of turned rows, a few elements of all tiles at a time: a line of memory belongs to several.
  const Index tiles = ceil_div(rows, PRODUCT_ROWS), some = a.column == 1 ? LINE : inner;
  for (Index p = 0; p < inner; p += some)
    for (Index i = 0; i < tiles; ++i) {
      const Part tile = tile_rows(rows, i);
      const Index along = std::min(some, inner - p);
      const float* from = a.data + tile.begin * a.row + p * a.column;
      float* packed = to + (i * inner + p) * PACKED_ROWS;
      if (a.column != 1)
        pack_straight<false>(tile.size, along, from, a.column, PACKED_ROWS, packed);
      else if (PACKED_ROWS == LANES && tile.begin + LANES <= rows)  // with rows of the next tile
        pack_turned_lanes<false>(along, from, a.row, PACKED_ROWS, packed);
      else
        pack_turned<false>(tile.size, along, from, a.row, PACKED_ROWS, packed);
    }
}

}  // namespace abele
