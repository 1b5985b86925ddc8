// Products of matrices.
//
// The blocks are those of Goto and van de Geijn (doi 10.1145/1356052.1356053): a tile of c stays in
// registers while it runs along the inner dimension, and both operands are packed so that it reads
// them in order. Threads share c, never a sum, and the inner dimension is cut at places that depend
// on its size alone: any number of threads gives the same bits.
#include "tiles.h"

namespace abele {
namespace {

// Blocks of both operands that the second-level cache holds. Longer sums in one register would be
// less accurate, too.
constexpr Index BLOCK_ROWS = 18 * TILE_ROWS, BLOCK_COLUMNS = 512, BLOCK_INNER = 192;
constexpr Index A_WORK = BLOCK_ROWS * BLOCK_INNER + LANES;
constexpr Index WORK = A_WORK + BLOCK_COLUMNS * BLOCK_INNER;
// Results that stay in this cache until they are used, which brings others there.
constexpr Index KEPT = 1 << 16;

Part inner_part(Index inner, Index i) { return part(inner, ceil_div(inner, BLOCK_INNER), i); }
Index whole_columns(Index columns) { return ceil_div(columns, TILE_COLUMNS) * TILE_COLUMNS; }

// A part of c that one thread computes, and what it reads.
struct Share {
  Index rows, columns, inner;
  Matrix a, b;
  const float* packed;  // all of b, or null
  Index packed_columns, first_column;
  float* c;
  Index c_row;
  bool added;

  const float* columns_of(Part along, Index column) const {
    return packed + along.begin * packed_columns + (first_column + column) * along.size;
  }
};

// Some rows, a packed, with columns of b that are packed here if they are not yet.
void multiply_block(const Share& share, Part high, Part wide, Part along, const float* a,
                    float* b_work) {
  for (Index column = wide.begin; column < wide.begin + wide.size; column += TILE_COLUMNS) {
    const Index width = std::min(TILE_COLUMNS, share.columns - column);
    const float* b = b_work + (column - wide.begin) * along.size;
    if (share.packed != nullptr)
      b = share.columns_of(along, column);
    else if (high.begin == 0)
      pack_columns(share.b.from(along.begin, column), along.size, width,
                   b_work + (column - wide.begin) * along.size);
    const bool add = share.added || along.begin > 0;
    for (Index i = 0; i < ceil_div(high.size, TILE_ROWS); ++i) {
      const Part rows = tile_rows(high.size, i);
      const float* tile_a = a + rows.begin * along.size;
      float* c = share.c + (high.begin + rows.begin) * share.c_row + column;
      if (width == TILE_COLUMNS)
        TILES[add][rows.size - 1](along.size, tile_a, b, c, share.c_row);
      else
        narrow_tile(rows.size, width, along.size, tile_a, b, c, share.c_row, add);
    }
  }
}

void multiply(const Share& share, float* work) {
  const Index blocks = ceil_div(share.rows, BLOCK_ROWS);
  for (Index cut = 0; cut < ceil_div(share.inner, BLOCK_INNER); ++cut) {
    const Part along = inner_part(share.inner, cut);
    for (Index column = 0; column < share.columns; column += BLOCK_COLUMNS) {
      const Part wide{column, std::min(BLOCK_COLUMNS, share.columns - column)};
      for (Index i = 0; i < blocks; ++i) {
        const Part high = part(share.rows, blocks, i);
        pack_rows(share.a.from(high.begin, along.begin), high.size, along.size, work);
        multiply_block(share, high, wide, along, work, work + A_WORK);
      }
    }
  }
}

Share whole(const AbeleProduct& p, const float* a, const float* b, float* c) {
  const Matrix plain{p.b_packed ? nullptr : b, p.b_row, p.b_column};
  return {p.rows,
          p.columns,
          p.inner,
          {a, p.a_row, p.a_column},
          plain,
          p.b_packed ? b : nullptr,
          whole_columns(p.columns),
          0,
          c,
          p.c_row,
          p.added != 0};
}

// How many parts of the columns; threads / this many are those of the rows. What counts is how much
// a thread multiplies and packs, an element packed like PACKING multiply-adds.
Index column_parts(const AbeleProduct& p, int threads) {
  constexpr Index PACKING = 8;
  const Index high = ceil_div(p.rows, TILE_ROWS), wide = ceil_div(p.columns, TILE_COLUMNS);
  Index best = 1, least = -1;
  for (Index parts = 1; parts <= threads; ++parts) {
    if (threads % parts != 0) continue;
    const Index rows = std::min(p.rows, ceil_div(high * parts, threads) * TILE_ROWS);
    const Index columns = std::min(p.columns, ceil_div(wide, parts) * TILE_COLUMNS);
    const Index cost = rows * columns + PACKING * (rows + (p.b_packed ? 0 : columns));
    if (least < 0 || cost < least) least = cost, best = parts;
  }
  return best;
}

// The share of one of `threads` threads; it may be empty.
Share share_of(const AbeleProduct& p, Share share, int threads, Index across, Index thread) {
  const Index high = ceil_div(p.rows, TILE_ROWS), wide = ceil_div(p.columns, TILE_COLUMNS);
  const Part tiles = part(high, threads / across, thread / across);
  const Part columns = part(wide, across, thread % across);
  const Index row = tile_rows(p.rows, tiles.begin).begin;
  const Index last = tiles.begin + tiles.size;
  const Index column = columns.begin * TILE_COLUMNS;
  share.rows = (last == high ? p.rows : tile_rows(p.rows, last).begin) - row;
  share.columns = std::min(p.columns - column, columns.size * TILE_COLUMNS);
  share.a = share.a.from(row, 0);
  if (share.packed == nullptr) share.b = share.b.from(0, column);
  share.first_column = column;
  share.c += row * share.c_row + column;
  return share;
}

// How many pieces of b are packed one by one, and such a piece.
Index pieces(const AbeleProduct& p) {
  return ceil_div(p.columns, TILE_COLUMNS) * ceil_div(p.inner, BLOCK_INNER);
}
void pack_piece(const AbeleProduct& p, const float* b, float* packed, Index i) {
  const Index wide = ceil_div(p.columns, TILE_COLUMNS), column = i % wide * TILE_COLUMNS;
  const Part along = inner_part(p.inner, i / wide);
  pack_columns(Matrix{b, p.b_row, p.b_column}.from(along.begin, column), along.size,
               std::min(TILE_COLUMNS, p.columns - column),
               packed + along.begin * wide * TILE_COLUMNS + column * along.size);
}

}  // namespace
}  // namespace abele

using namespace abele;

int abele_product(const AbeleProduct* product, const float* a, const float* b, float* c,
                  int threads) {
  return guarded([&](Scratch& memory) {
    const AbeleProduct& p = *product;
    float* work = memory.take<float>(WORK * threads);
    const auto nth = [&](Index i) {
      return whole(p, a + i * p.a_next, b + i * p.b_next, c + i * p.c_next);
    };
    if (threads == 1) {
      for (Index i = 0; i < p.count; ++i) multiply(nth(i), work);
      return;
    }
    const bool alone = p.count >= threads;  // a thread computes whole products
    const Index across = alone ? 1 : column_parts(p, threads);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int thread = 0; thread < threads; ++thread) {
      const Part some = alone ? part(p.count, threads, thread) : Part{0, p.count};
      for (Index i = some.begin; i < some.begin + some.size; ++i)
        multiply(alone ? nth(i) : share_of(p, nth(i), threads, across, thread),
                 work + thread * WORK);
    }
  });
}

int abele_product_by_rows(const AbeleProduct* product, const float* a, const float* b,
                          AbeleRows then, void* context, int threads) {
  return guarded([&](Scratch& memory) {
    AbeleProduct p = *product;
    const Index tiles = ceil_div(p.rows, TILE_ROWS), kept = ceil_div(p.rows * p.columns, KEPT);
    const Index blocks = std::min(tiles, ceil_div(kept, threads) * threads);
    const Index result = ceil_div(tiles, blocks) * TILE_ROWS * p.columns;
    const Index unpacked = p.b_packed ? 0 : pieces(p);
    const Index room = A_WORK + result + (unpacked ? p.inner * whole_columns(p.columns) : 0);
    float* work = memory.take<float>(room * threads);
    p.b_packed = 1, p.c_row = 0;  // each block begins at the same place
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (int thread = 0; thread < threads; ++thread) {
      float *mine = work + thread * room, *c = mine + A_WORK, *packed = c + result;
      // Each thread for itself: from the cache of another it would come more slowly.
      for (Index i = 0; i < unpacked; ++i) pack_piece(*product, b, packed, i);
      const Part some = part(blocks, threads, thread);
      for (Index i = some.begin; i < some.begin + some.size; ++i) {
        Share share = share_of(p, whole(p, a, unpacked ? packed : b, c), blocks, 1, i);
        share.c_row = p.columns;
        multiply(share, mine);
        then(context, c, tile_rows(p.rows, part(tiles, blocks, i).begin).begin, share.rows);
      }
    }
  });
}

int abele_product_pack(const AbeleProduct* product, const float* b, float* packed, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (Index i = 0; i < pieces(*product); ++i) pack_piece(*product, b, packed, i);
  return ABELE_OK;
}
