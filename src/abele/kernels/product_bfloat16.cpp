// Products of bfloat16 matrices whose right factors are packed once for many calls: pairs (dots.h) of 64
// columns each. A tile reads ten elements for 24 instructions, and stores its sums once. Of oneDNN's time with
// its own order of weights it takes 0.8 to 0.9 with 64 rows or an inner dimension of 128, else 0.93 to 0.97.
#include "blocks.h"
#include "operands.h"

namespace abele {
namespace {

constexpr int ROWS = 6, COLUMNS = 64;
// Rows that stay in the second-level cache beside packed columns: at most so many, and so many elements.
constexpr Index BLOCK_ROWS = 21 * ROWS, BLOCK = 1 << 18;

// y[rows, COLUMNS] = a[rows, pairs] packed[pairs, COLUMNS] + bias.
template <class Numbers, int rows>
void tile(Index pairs, const float* a, Index a_row, const float* packed, Ahead ahead,
          const float* bias, void* y, Index y_row) {
  const auto round = [=](int i, int v, Vec sum) {
    Numbers::round(sum + load(bias + v * LANES), static_cast<Bits16*>(y) + i * y_row + v * LANES);
  };
  tile_sums<Numbers, true, rows, COLUMNS / LANES, true>(pairs, a, a_row, packed, COLUMNS, nullptr,
                                                        0, ahead.line, ahead.step, round);
}
using Tile = decltype(&tile<Dots, 1>);
template <class Numbers>
constexpr auto TILES_OF = table_of<ROWS>([](auto i) -> Tile { return tile<Numbers, i + 1>; });
constexpr std::array<Tile, ROWS> TILES[] = {TILES_OF<PlainDots>, TILES_OF<Dots>};

// Some rows of y in the columns of one panel, and the panel behind it asked for.
void multiply_panel(const AbeleProduct& p, Part rows, Index column, const float* a,
                    const float* packed, const float* bias, Bits16* y) {
  const Index pairs = p.inner / PAIR, tiles = ceil_div(rows.size, ROWS), step = p.a_row / PAIR;
  const Index width = std::min<Index>(COLUMNS, p.columns - column);
  const bool whole = width == COLUMNS;
  float own_bias[COLUMNS] = {};
  Bits16 own[ROWS * COLUMNS];
  std::copy_n(bias + column, width, own_bias);
  const float* panel = packed + column * pairs;
  for (Index i = 0; i < tiles; ++i) {
    const Part some = part(rows.size, tiles, i);
    const Index first = rows.begin + some.begin, asked = i * pairs * LINE;
    const bool asks = column + COLUMNS < p.columns && asked < COLUMNS * pairs;
    Bits16* to = y + first * p.c_row + column;
    const Ahead ahead = asks ? Ahead{panel + COLUMNS * pairs + asked, LINE} : Ahead{panel, 0};
    TILES[has_dots()][some.size - 1](pairs, a + first * step, step, panel, ahead, own_bias,
                                     whole ? to : own, whole ? p.c_row : COLUMNS);
    for (Index row = 0; !whole && row < some.size; ++row)
      std::copy_n(own + row * COLUMNS, width, to + row * p.c_row);
  }
}

}  // namespace
}  // namespace abele

using namespace abele;

int abele_product_bfloat16_pack(const AbeleProduct* product, const void* b, float* packed,
                                int threads) {
  const AbeleProduct& p = *product;
  const Index pairs = p.inner / PAIR;
  for_each(ceil_div(p.columns, COLUMNS), threads, [&](Index panel) {
    const Index column = panel * COLUMNS, width = std::min<Index>(COLUMNS, p.columns - column);
    const auto* from = static_cast<const Bits16*>(b) + column * p.b_column;
    float* to = packed + column * pairs;
    if (width < COLUMNS) std::fill_n(to, COLUMNS * pairs, 0.0f);
    if (p.b_column != 1)
      return pack_turned<false>(width, pairs, reinterpret_cast<const float*>(from),
                                p.b_column / PAIR, COLUMNS, to);
    for (Index i = 0; i < pairs; ++i, from += PAIR * p.b_row)
      pair_rows(from, from + p.b_row, width, to + i * COLUMNS);
  });
  return ABELE_OK;
}

int abele_product_bfloat16(const AbeleProduct* product, const void* a, const float* packed,
                           const float* bias, void* y, int threads) {
  const AbeleProduct& p = *product;
  const float* from = static_cast<const float*>(a);
  return guarded([&](Scratch& memory) {
    // Threads take blocks of rows or, of few rows, panels of columns.
    const Index most = std::clamp<Index>(BLOCK / p.inner / ROWS * ROWS, 4 * ROWS, BLOCK_ROWS);
    const bool by_rows = p.rows >= threads * most;
    const Index panels = ceil_div(p.columns, COLUMNS), blocks = ceil_div(p.rows, most);
    const Index count = by_rows ? ceil_div(blocks, threads) * threads : panels;
    const Blocks all(count, threads, memory);
    for_each(threads, threads, [&](Index thread) {
      for (Part some; (some = all.next(thread)).size > 0;)
        for (Index i = some.begin; i < some.begin + some.size; ++i) {
          const Part rows = by_rows ? part(p.rows, count, i) : Part{0, p.rows};
          for (Index panel = by_rows ? 0 : i; panel < (by_rows ? panels : i + 1); ++panel)
            multiply_panel(p, rows, panel * COLUMNS, from, packed, bias, static_cast<Bits16*>(y));
        }
    });
  });
}
