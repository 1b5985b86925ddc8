// Products of matrices.
//
// The blocks are those of Goto and van de Geijn (doi 10.1145/1356052.1356053): a tile of c stays in
// registers while it runs along the inner dimension, and b is packed so that it reads that in order.
// Threads share c, never a sum, and the inner dimension is cut at places that depend on its size
// alone: any number of threads gives the same bits.
#include <atomic>

#include "blocks.h"
#include "few_rows.h"
#include "long_sums.h"
#include "operands.h"
#include "product.h"
#include "small_product.h"

namespace abele {
namespace {

// Blocks of both operands that the second-level cache holds, beside what is read next.
constexpr Index BLOCK_ROWS = 10 * PRODUCT_ROWS, BLOCK_COLUMNS = 512, BLOCK_INNER = 256;
constexpr Index A_WORK = BLOCK_ROWS / PRODUCT_ROWS * PACKED_ROWS * BLOCK_INNER;
// Columns of a transposed b of 16 bits, converted before they are packed.
constexpr Index TURNED = PRODUCT_COLUMNS * BLOCK_INNER;
constexpr Index WORK = A_WORK + BLOCK_COLUMNS * BLOCK_INNER + TURNED;
// Results that stay in this cache until they are used, which brings others there.
constexpr Index KEPT = 1 << 16;
// Threads take rows one after the other where each can pack all of b, which is no larger than this. So
// many rows are a block; with fewer, b would be read too often.
constexpr Index SHARED = 1 << 18, ROWS_AT_ONCE = BLOCK_ROWS / 2;
// A b of so many elements is packed once, by all threads.
constexpr Index PACKED_TOGETHER = 1 << 17;

// With fewer FMAs for each element of a factor, pairing takes longer than it saves.
constexpr Index LEAST_REUSE = 16;

bool in_pairs(const AbeleProduct& p) { return p.a_type == PAIRS || p.a_type == UNPAIRED; }

// Describes one factor of bfloat16 numbers as one of pairs: `along` is its step along the inner dimension,
// `across` the other one. Returns whether that is possible.
bool pair_factor(Index& type, Index& next, Index& along, Index& across) {
  if (along == 1 && (across % PAIR != 0 || next % PAIR != 0)) return false;
  if (along == 1)
    type = PAIRS, across /= PAIR, next /= PAIR;
  else
    type = UNPAIRED, along *= PAIR;
  return true;
}

// The same product of pairs, where the processor has an instruction for those of bfloat16.
AbeleProduct with_pairs(const AbeleProduct& p) {
  const bool both = p.a_type == ABELE_BFLOAT16 && p.b_type == ABELE_BFLOAT16;
  const bool large = std::min(p.rows, p.columns) >= LEAST_REUSE && p.inner >= LEAST_REUSE;
  if (!both || !large || p.b_packed || p.inner % PAIR != 0 || !has_dots()) return p;
  AbeleProduct pairs = p;
  pairs.halves = 0, pairs.inner /= PAIR;
  if (pair_factor(pairs.a_type, pairs.a_next, pairs.a_column, pairs.a_row) &&
      pair_factor(pairs.b_type, pairs.b_next, pairs.b_row, pairs.b_column))
    return pairs;
  return p;
}

// With more rows, packing b costs little; with a shorter inner dimension, writing c lane by lane
// costs more.
constexpr Index FEW_ROWS = 128, LEAST_INNER = 64;

Index cuts_of(Index inner) { return ceil_div(inner, LONGEST_SUM); }
Part inner_part(Index inner, Index i) { return part(inner, cuts_of(inner), i); }

// Parts of the inner dimension that are packed together, so that c is still in the cache for the
// second. Two parts are longer than LONGEST_SUM, so more than two are longer than a block.
struct Block {
  Part parts[2];
  int count;
  Index begin, size;
};
static_assert(3 * LONGEST_SUM / 2 > BLOCK_INNER);

// The block that begins with a part.
Block inner_block(Index inner, Index cut, Index most = BLOCK_INNER) {
  const Part first = inner_part(inner, cut);
  if (cut + 1 == cuts_of(inner)) return {{first, {}}, 1, first.begin, first.size};
  const Part next = inner_part(inner, cut + 1);
  const Index both = first.size + next.size;
  if (both > most) return {{first, {}}, 1, first.begin, first.size};
  return {{first, next}, 2, first.begin, both};
}
Index whole_columns(Index columns) { return ceil_div(columns, PRODUCT_COLUMNS) * PRODUCT_COLUMNS; }

// A part of c that one thread computes, and what it reads.
struct Share {
  Index rows, columns, inner;
  Operand a, b;
  const float* packed;  // all of b, or null
  Index packed_columns, first_column;
  float* c;         // null if it has 16 bits
  uint16_t* small;  // c of 16 bits, or null
  Index c_row, c_type;
  bool added;
  Index behind;  // rows that follow those of a in memory
  bool one_row;  // c has no other, in any thread
  bool pairs;    // elements of factors are pairs of bfloat16 numbers
  const Finish* finish = nullptr;  // of complete sums, or null
  const float* first = nullptr;    // of all of c

  void move_result(Index elements) {
    if (small != nullptr)
      small += elements;
    else
      c += elements;
  }
  const float* columns_of(Part along, Index column) const {
    return packed + along.begin * packed_columns + (first_column + column) * along.size;
  }
};

// A tile whose sums are complete, in place; the first of its columns in all of c is `column`.
void finish_tile(const Share& share, Index rows, Index column, Index width, float* c) {
  const Finish& finish = *share.finish;
  const float* added = finish.added == nullptr ? nullptr : finish.added + (c - share.first);
  const Vec low = broadcast(finish.low), high = broadcast(finish.high);
  for (Index i = 0; i < rows; ++i, c += share.c_row) {
    Index j = 0;
    for (; j + LANES <= width; j += LANES) {
      Vec sum = load(c + j) + load(finish.bias + column + j);
      if (added != nullptr) sum += load(added + i * share.c_row + j);
      store(c + j, bounded(sum, low, high));
    }
    for (; j < width; ++j) {
      float sum = c[j] + finish.bias[column + j];
      if (added != nullptr) sum += added[i * share.c_row + j];
      sum = sum < finish.low ? finish.low : sum;
      c[j] = sum > finish.high ? finish.high : sum;
    }
  }
}

void last_tile_of(const Share& share, Index rows, Index column, Index inner, Matrix a,
                  const float* b, float* c, bool add, Ahead ahead) {
  const Finish& finish = *share.finish;
  const float* added = finish.added == nullptr ? nullptr : finish.added + (c - share.first);
  LAST_TILES[a.column == 1][add][rows - 1](inner, a.data, long_step(a), b, c, share.c_row,
                                           ahead.line, ahead.step, finish.bias + column, added,
                                           finish.low, finish.high);
}

// One tile of c; a and b begin with the block, unless all of b is packed.
// Of the next packed columns, the tile asks for the part `next`, which may be empty.
void multiply_tile(const Share& share, Part rows, Index column, const Block& block, Matrix a,
                   const float* b, Ahead ahead, Part next) {
  const Index width = std::min(PRODUCT_COLUMNS, share.columns - column);
  float* c = share.c + rows.begin * share.c_row + column;
  for (int i = 0; i < block.count; ++i) {
    const Part along = block.parts[i];
    const bool add = share.added || along.begin > 0;
    const bool asks = share.packed == nullptr || ASKS_AFTER_PACKING;
    if (share.packed != nullptr) b = share.columns_of(along, column);
    if (next.size > 0 && share.packed != nullptr)
      ahead = {b + (PRODUCT_COLUMNS + next.begin) * along.size, next.size};
    const bool last = share.finish != nullptr && along.begin + along.size == share.inner;
    if (share.pairs)
      small_block(rows.size, width, along.size, a, {b, PRODUCT_COLUMNS, 1}, c, share.c_row, add,
                  pair_tiles());
    else if (share.one_row)
      (share.packed ? one_row_tile<true> : one_row_tile<false>)(width, along.size, a, b, c, add,
                                                                ahead);
    else if (width == PRODUCT_COLUMNS && last)
      return last_tile_of(share, rows.size, share.first_column + column, along.size, a, b, c, add,
                          ahead);
    else if (width == PRODUCT_COLUMNS)
      TILES[a.column == 1][add][asks][rows.size - 1](along.size, a.data, long_step(a), b, c,
                                                     share.c_row, ahead.line, ahead.step);
    else
      narrow_tile(rows.size, width, along.size, a, b, c, share.c_row, add, ahead);
    if (last) return finish_tile(share, rows.size, share.first_column + column, width, c);
    a = a.from(0, along.size), b += along.size * PRODUCT_COLUMNS;
    ahead.line += along.size * ahead.step;
  }
}

// A matrix that is read soon, of which tiles ask for a column of lines each.
class Upcoming {
 public:
  Upcoming() = default;
  Upcoming(const Operand& m, Index rows, Index columns)
      : line_(m.lines().data),
        step_(long_step(m.lines())),
        left_((m.column == 1 ? columns : rows) / (m.narrow() ? 2 : 1)) {}
  bool empty() const { return left_ <= 0; }
  Ahead next() {
    const Ahead lines{line_, step_};
    line_ += LINE, left_ -= LINE;
    return lines;
  }

 private:
  const float* line_ = nullptr;
  Index step_ = 0, left_ = 0;
};

// The columns of b behind a tile's, if they are packed there.
Upcoming columns_behind(const Share& share, const Block& block, Index column) {
  const Index next = column + PRODUCT_COLUMNS;
  if (next >= share.columns) return {};
  return {share.b.from(block.begin, next), block.size,
          std::min(PRODUCT_COLUMNS, share.columns - next)};
}

// Some rows of a in a block, packed or converted to `work` where tiles do not read them where they are.
Matrix rows_of_block(const Share& share, Part high, const Block& block, float* work) {
  const Operand a = share.a.from(high.begin, block.begin);
  if (!a.narrow() && packs_rows(a.floats())) {
    pack_rows(a.floats(), high.size, block.size, work);
    return {work, 1, PACKED_ROWS};
  }
  return in_float32(a, high.size, block.size, work);
}

// The rows of tile `i` of those rows.
Matrix rows_of_tile(const Share& share, Matrix rows, Part high, Index i, const Block& block) {
  if (!share.a.narrow() && packs_rows(share.a.floats()))
    return {rows.data + i * block.size * PACKED_ROWS, 1, PACKED_ROWS};
  return rows.from(tile_rows(high.size, i).begin, 0);
}

// Some rows, with columns of b that are packed here if they are not yet.
void multiply_block(const Share& share, Part high, Part wide, const Block& block,
                    Matrix ready, float* b_work, Upcoming rows_behind) {
  const Index tiles = ceil_div(high.size, PRODUCT_ROWS);
  const bool packs = share.packed == nullptr && high.begin == 0;
  // Tiles share the next packed columns: a tile that asked for many would wait for memory. Each step of
  // its sums asks for no more than a line.
  const Index step = std::min(LINE, ceil_div(PRODUCT_COLUMNS, tiles));
  for (Index column = wide.begin; column < wide.begin + wide.size; column += PRODUCT_COLUMNS) {
    float* b = b_work + (column - wide.begin) * block.size;
    Upcoming columns;
    if (packs) {
      pack_panel<false>(share.b.from(block.begin, column), block.size,
                        std::min(PRODUCT_COLUMNS, share.columns - column),
                        b_work + BLOCK_COLUMNS * BLOCK_INNER, b);
      columns = columns_behind(share, block, column);
    }
    for (Index i = 0; i < tiles; ++i) {
      const Part rows = tile_rows(high.size, i);
      Upcoming& upcoming = columns.empty() ? rows_behind : columns;
      const Part next = {i * step, i * step < PRODUCT_COLUMNS ? step : 0};
      const bool asks_here = share.packed == nullptr || next.size == 0;
      const Ahead ahead = upcoming.empty() || !asks_here ? Ahead{b, 0} : upcoming.next();
      multiply_tile(share, {high.begin + rows.begin, rows.size}, column, block,
                    rows_of_tile(share, ready, high, i, block), b, ahead, next);
    }
  }
}

// The rows of a that are read after block `i` of the rows and columns up to `last`.
Upcoming rows_behind(const Share& share, const Block& block, Index cut, Index i, Index last) {
  const Index blocks = ceil_div(share.rows, BLOCK_ROWS);
  if (i + 1 < blocks) {
    const Part rows = part(share.rows, blocks, i + 1);
    return {share.a.from(rows.begin, block.begin), rows.size, block.size};
  }
  const Index next = cut + block.count;
  if (last < share.columns) return {};
  if (next == cuts_of(share.inner))
    return {share.a.from(share.rows, 0), share.behind, inner_block(share.inner, 0).size};
  const Block behind = inner_block(share.inner, next);
  return {share.a.from(0, behind.begin), part(share.rows, blocks, 0).size, behind.size};
}

void multiply(const Share& share, float* work) {
  const Index blocks = ceil_div(share.rows, BLOCK_ROWS), cuts = cuts_of(share.inner);
  // Where all of b is packed, room for its columns is room for longer rows of a.
  const Index most = share.finish == nullptr ? BLOCK_INNER : 2 * LONGEST_SUM;
  for (Index cut = 0; cut < cuts;) {
    const Block block = inner_block(share.inner, cut, most);
    for (Index column = 0; column < share.columns; column += BLOCK_COLUMNS) {
      const Part wide{column, std::min(BLOCK_COLUMNS, share.columns - column)};
      for (Index i = 0; i < blocks; ++i) {
        const Part high = part(share.rows, blocks, i);
        const Matrix ready = rows_of_block(share, high, block, work);
        multiply_block(share, high, wide, block, ready, work + A_WORK,
                       rows_behind(share, block, cut, i, column + wide.size));
      }
    }
    cut += block.count;
  }
}

// The same where a has few rows and b is read where it lies. Sums have the same order.
void multiply_few_rows(const Share& share, float* work) {
  const Index cuts = cuts_of(share.inner), groups = ceil_div(share.columns, AT_ONCE);
  float* converted = work + ceil_div(share.rows, LANES) * LANES * share.inner;
  for (Index row = 0; row < share.rows; row += LANES) {
    const Index count = std::min<Index>(LANES, share.rows - row);
    const Matrix rows = in_float32(share.a.from(row, 0), count, share.inner, converted);
    pack_lanes(rows, count, share.inner, work + row * share.inner);
  }
  for (Index i = 0; i < groups; ++i) {
    const Part wide = part(share.columns, groups, i);
    const Matrix b = in_float32(share.b.from(0, wide.begin), share.inner, wide.size, converted);
    for (Index row = 0; row < share.rows; row += LANES) {
      const float* a = work + row * share.inner;
      float sums[AT_ONCE * LANES];
      for (Index cut = 0; cut < cuts; ++cut) {
        const Part along = inner_part(share.inner, cut);
        FEW_ROWS_TILES[wide.size - 1](along.size, a + along.begin * LANES,
                                      b.from(along.begin, 0).data, b.column, sums, cut > 0);
      }
      for (Index r = 0; r < std::min<Index>(LANES, share.rows - row); ++r)
        for (Index j = 0; j < wide.size; ++j) {
          float& c = share.c[(row + r) * share.c_row + wide.begin + j];
          c = share.added ? c + sums[j * LANES + r] : sums[j * LANES + r];
        }
    }
  }
}

// Whether a product is computed so; at most one lane in eight may be without a row.
bool has_few_rows(const AbeleProduct& p) {
  if (in_pairs(p)) return false;
  const Index lanes = ceil_div(p.rows, LANES) * LANES;
  return p.rows <= FEW_ROWS && 8 * p.rows >= 7 * lanes && p.inner >= LEAST_INNER &&
         p.a_column == 1 && p.b_row == 1 && !p.b_packed;
}

bool has_small_factors(const AbeleProduct& p) {
  const bool in_rows = p.b_column == 1 || p.rows >= LEAST_TURNED;
  return is_small(p.rows, p.columns, p.inner) && in_rows && !p.b_packed && !in_pairs(p);
}

// Small factors; a turned b is turned back.
void multiply_small_share(const Share& share, float* work) {
  const Matrix a = in_float32(share.a, share.rows, share.inner, work);
  if (share.a.narrow()) work += share.rows * share.inner;
  Matrix b = in_float32(share.b, share.inner, share.columns, work);
  if (share.b.narrow()) work += share.inner * share.columns;
  if (b.column != 1) {
    for (Index i = 0; i < share.columns; i += LANES)
      pack_turned_lanes<false>(share.inner, b.from(0, i).data, b.column, share.columns, work + i);
    b = {work, share.columns, 1};
  }
  multiply_small(a, b, share.rows, share.columns, share.inner, share.c, share.c_row,
                 share.added);
}

// How a thread computes its share, and the room that it needs.
struct Way {
  bool small, few;
  Index room;
  void operator()(const Share& share, float* work) const {
    if (share.small != nullptr)
      round(share, work);
    else if (small)
      multiply_small_share(share, work);
    else if (few)
      multiply_few_rows(share, work);
    else
      multiply(share, work);
  }

 private:
  // A c of 16 bits, block by block.
  void round(const Share& share, float* work) const {
    for (Index row = 0; row < share.rows; row += BLOCK_ROWS)
      for (Index column = 0; column < share.columns; column += BLOCK_COLUMNS) {
        Share block = share;
        block.rows = std::min(BLOCK_ROWS, share.rows - row);
        block.columns = std::min(BLOCK_COLUMNS, share.columns - column);
        block.a = share.a.from(row, 0);
        if (share.packed == nullptr) block.b = share.b.from(0, column);
        block.first_column += column, block.behind = 0;
        block.c = work, block.c_row = block.columns, block.small = nullptr;
        (*this)(block, work + BLOCK_ROWS * BLOCK_COLUMNS);
        uint16_t* to = share.small + row * share.c_row + column;
        for (Index i = 0; i < block.rows; ++i)
          narrow_row(share.c_type, work + i * block.columns, block.columns, to + i * share.c_row);
      }
  }
};
Way way_of(const AbeleProduct& p) {
  const Index rounded = p.c_type != ABELE_FLOAT32 ? BLOCK_ROWS * BLOCK_COLUMNS : 0;
  const bool narrow_a = p.a_type != ABELE_FLOAT32, narrow_b = p.b_type != ABELE_FLOAT32;
  if (in_pairs(p)) return {false, false, rounded + WORK};
  if (has_small_factors(p)) {
    const Index a = narrow_a ? p.rows * p.inner : 0, b = p.inner * p.columns;
    return {true, false, rounded + a + (narrow_b ? b : 0) + (p.b_column == 1 ? 0 : b)};
  }
  if (!has_few_rows(p)) return {false, false, rounded + WORK};
  const Index converted = narrow_a || narrow_b ? std::max(LANES, AT_ONCE) * p.inner : 0;
  return {false, true, rounded + ceil_div(p.rows, LANES) * LANES * p.inner + converted};
}

Share whole(const AbeleProduct& p, const void* a, const void* b, void* c) {
  const Operand plain{p.b_packed ? nullptr : b, p.b_row, p.b_column, p.b_type};
  const bool rounded = p.c_type != ABELE_FLOAT32;
  return {p.rows,
          p.columns,
          p.inner,
          {a, p.a_row, p.a_column, p.a_type},
          plain,
          p.b_packed ? static_cast<const float*>(b) : nullptr,
          whole_columns(p.columns),
          0,
          rounded ? nullptr : static_cast<float*>(c),
          rounded ? static_cast<uint16_t*>(c) : nullptr,
          p.c_row,
          p.c_type,
          p.added != 0,
          0,
          p.rows == 1,
          in_pairs(p)};
}

// One half of the inner dimension.
Share half_of(Share share, Index which) {
  const Part along = part(share.inner, 2, which);
  share.a = share.a.from(0, along.begin), share.b = share.b.from(along.begin, 0);
  share.inner = along.size;
  return share;
}

// How many parts of the columns; threads / this many are those of the rows. What counts is how much
// a thread multiplies and packs, an element packed like PACKING multiply-adds; and where a row of c
// belongs to several threads, each loses lines to others that look ahead, which takes as long as
// BORDER multiply-adds.
Index column_parts(const AbeleProduct& p, int threads) {
  constexpr Index PACKING = 8, BORDER = 4096;
  if (!has_small_factors(p) && has_few_rows(p)) return threads;
  const Index high = ceil_div(p.rows, PRODUCT_ROWS), wide = ceil_div(p.columns, PRODUCT_COLUMNS);
  Index best = 1, least = -1;
  for (Index parts = 1; parts <= threads; ++parts) {
    if (threads % parts != 0) continue;
    const Index rows = std::min(p.rows, ceil_div(high * parts, threads) * PRODUCT_ROWS);
    const Index columns = std::min(p.columns, ceil_div(wide, parts) * PRODUCT_COLUMNS);
    const Index border = (parts - 1) * rows * BORDER / std::max<Index>(p.inner, 1);
    const Index cost = rows * columns + PACKING * (rows + (p.b_packed ? 0 : columns)) + border;
    if (least < 0 || cost < least) least = cost, best = parts;
  }
  return best;
}

// The share of one of `threads` threads; it may be empty.
Share share_of(const AbeleProduct& p, Share share, int threads, Index across, Index thread) {
  // Where b is read where it lies, columns are not packed together: threads have equally many.
  const Index step = !has_small_factors(p) && has_few_rows(p) ? 1 : PRODUCT_COLUMNS;
  const Part rows = part(p.rows, threads / across, thread / across);
  const Part columns = part(ceil_div(p.columns, step), across, thread % across);
  const Index column = columns.begin * step;
  share.rows = rows.size;
  share.columns = std::min(p.columns - column, columns.size * step);
  share.a = share.a.from(rows.begin, 0);
  if (share.packed == nullptr) share.b = share.b.from(0, column);
  share.first_column = column;
  share.move_result(rows.begin * share.c_row + column);
  return share;
}

// Always the sum of two, so that any number of threads gives the same bits; more than two share each.
void multiply_in_halves(const AbeleProduct& p, const Share& share, int threads, Scratch& memory) {
  const int each = std::max(1, threads / 2), started = threads > 1 ? 2 * each : 1;
  const Index across = column_parts(p, each);
  // A thread alone adds the second to the first, unless that itself is a sum of several.
  const bool apart = started > 1 || cuts_of(half_of(share, 1).inner) > 1;
  const Each<float> work = memory.each<float>(WORK, started);
  float* second = apart ? memory.take<float>(p.rows * p.columns) : nullptr;
  for_each(2 * each, started, [&](Index i) {
    Share half = half_of(share, i / each);
    if (i >= each) half.added = !apart;
    if (i >= each && apart) half.c = second, half.c_row = p.columns;
    half = share_of(p, half, each, across, i % each);
    if (half.rows > 0 && half.columns > 0) multiply(half, work.of(i % started));
  });
  for_each(apart ? p.rows : 0, started, [&](Index row) {
    for (Index i = 0; i < p.columns; ++i)
      share.c[row * p.c_row + i] += second[row * p.columns + i];
  });
}

// How many pieces of b are packed one by one, and such a piece.
Index pieces(const AbeleProduct& p) {
  return ceil_div(p.columns, PRODUCT_COLUMNS) * cuts_of(p.inner);
}
void pack_piece(const AbeleProduct& p, const void* b, float* packed, Index i) {
  const Index wide = ceil_div(p.columns, PRODUCT_COLUMNS), column = i % wide * PRODUCT_COLUMNS;
  const Part along = inner_part(p.inner, i / wide);
  float turned[PRODUCT_COLUMNS * LONGEST_SUM];
  pack_panel<true>(Operand{b, p.b_row, p.b_column, p.b_type}.from(along.begin, column), along.size,
                   std::min(PRODUCT_COLUMNS, p.columns - column), turned,
                   packed + along.begin * wide * PRODUCT_COLUMNS + column * along.size);
}

// Rows of a product: whole tiles, in as many blocks as threads take one after the other.
Part rows_of(const AbeleProduct& p, Index blocks, Part some) {
  const Index tiles = ceil_div(p.rows, PRODUCT_ROWS);
  const Part last = part(tiles, blocks, some.begin + some.size - 1);
  const Index begin = part(tiles, blocks, some.begin).begin * PRODUCT_ROWS;
  return {begin, std::min(p.rows, (last.begin + last.size) * PRODUCT_ROWS) - begin};
}
Index row_blocks(const AbeleProduct& p, Index rows, int threads) {
  const Index even = ceil_div(ceil_div(p.rows, rows), threads) * threads;
  return std::min(ceil_div(p.rows, PRODUCT_ROWS), even);
}

// Packs all of b; pieces are taken one after the other, so that no thread waits for a slower one.
void pack_all(const AbeleProduct& p, const void* b, float* packed, int threads) {
  std::atomic<Index> next{0};
  on_threads(threads, [&](int, int) {
    for (Index i; (i = next++) < pieces(p);) pack_piece(p, b, packed, i);
  });
}

// Calls then(c, rows) when c has these rows of a product. If c is null they lie in memory of the thread,
// of which `kept` floats are for that. Each thread packs a small b for itself, because meeting takes
// longer; of a large one each packs a part.
template <class Then>
void multiply_rows(AbeleProduct p, const void* a, const void* b, float* c, Index blocks,
                   Index kept, int threads, Scratch& memory, Then then) {
  if (!p.b_packed && p.inner * p.columns >= PACKED_TOGETHER) {
    float* packed = memory.take<float>(p.inner * whole_columns(p.columns));
    pack_all(p, b, packed, threads);
    b = packed, p.b_packed = 1;
  }
  const Index unpacked = p.b_packed ? 0 : pieces(p);
  const Index room = A_WORK + kept + (unpacked ? p.inner * whole_columns(p.columns) : 0);
  const Each<float> work = memory.each<float>(room, threads);
  const Blocks all(blocks, threads, memory);
  for_each(threads, threads, [&](Index thread) {
    float *mine = work.of(thread), *packed = mine + A_WORK + kept;
    for (Index i = 0; i < unpacked; ++i) pack_piece(p, b, packed, i);
    AbeleProduct ready = p;
    ready.b_packed = 1;
    const Share share = whole(ready, a, unpacked ? packed : b, c);
    for (Part some; (some = all.next(thread)).size > 0;) {
      const Part rows = rows_of(p, blocks, some);
      Share now = share;
      now.rows = rows.size, now.a = share.a.from(rows.begin, 0);
      now.behind = p.rows - rows.begin - rows.size;
      now.c = c == nullptr ? mine + A_WORK : c + rows.begin * p.c_row;
      multiply(now, mine);
      then(now.c, rows);
    }
  });
}

// Threads share tiles of c.
void multiply_long_sums(const AbeleProduct& p, const float* a, const float* b, float* c,
                        int threads, Scratch& memory) {
  const Index tiles = long_sums::tiles_of(p);
  const int parts = static_cast<int>(std::min<Index>(threads, tiles));
  const Each<Vec> sums = memory.each<Vec>(ceil_div(tiles, parts) * long_sums::TILE, parts);
  for_each(parts, parts, [&](Index i) {
    const Part own = part(tiles, parts, i);
    long_sums::multiply_tiles(p, a, b, c, own.begin, own.begin + own.size, sums.of(i));
  });
}

// Whether threads take rows of a product one after the other. There have to be enough, and all of b has to
// be packed; of a turned a, few rows are parts of lines that the next need, too.
bool takes_rows(const AbeleProduct& p, Index across) {
  const bool near = p.inner * p.columns <= SHARED && p.a_column == 1;
  return p.count == 1 && across == 1 && near && p.c_type == ABELE_FLOAT32 && p.rows >= 4 * ROWS_AT_ONCE;
}

// A c that is one row, by one thread, which needs no memory.
void multiply_row(const Share& share) {
  const Index cuts = cuts_of(share.inner);
  for (Index cut = 0; cut < cuts; ++cut) {
    const Part along = inner_part(share.inner, cut);
    const Block block{{along, {}}, 1, along.begin, along.size};
    const Matrix row = share.a.floats().from(0, along.begin);
    for (Index column = 0; column < share.columns; column += PRODUCT_COLUMNS)
      multiply_tile(share, {0, 1}, column, block, row, nullptr, {share.packed, 0}, {0, 0});
  }
}

}  // namespace

int multiply_columns(const AbeleProduct& p, const float* a, const float* packed, float* c,
                     Index parts, Index which) {
  const Share share = share_of(p, whole(p, a, packed, c), parts, parts, which);
  if (share.columns <= 0) return ABELE_OK;
  if (p.rows == 1) return multiply_row(share), ABELE_OK;
  return guarded([&](Scratch& memory) { multiply(share, memory.each<float>(WORK, 1).first); });
}

void product(const AbeleProduct& given, const void* a, const void* b, void* c, int threads,
             Scratch& memory) {
  const AbeleProduct p = with_pairs(given);
  if (long_sums::has_long_sums(p))
    return multiply_long_sums(p, static_cast<const float*>(a), static_cast<const float*>(b),
                              static_cast<float*>(c), threads, memory);
  if (p.halves) return multiply_in_halves(p, whole(p, a, b, c), threads, memory);
  const Way compute = way_of(p);
  const bool summed = p.count > 1 && p.c_next == 0;
  const auto nth = [&](Index i) {
    Share share = whole(p, a, b, c);
    share.a = share.a.at(i * p.a_next), share.move_result(i * p.c_next);
    if (share.packed == nullptr)
      share.b = share.b.at(i * p.b_next);
    else
      share.packed += i * p.b_next;
    share.added = share.added || (summed && i > 0);
    return share;
  };
  if (threads == 1) {
    float* work = memory.each<float>(compute.room, 1).first;
    for (Index i = 0; i < p.count; ++i) compute(nth(i), work);
    return;
  }
  const bool alone = p.count >= threads && !summed;  // a thread computes whole products
  const Index across = alone ? 1 : column_parts(p, threads);
  if (!compute.small && !compute.few && takes_rows(p, across))
    return multiply_rows(p, a, b, static_cast<float*>(c), row_blocks(p, ROWS_AT_ONCE, threads), 0,
                         threads, memory, [](const float*, Part) {});
  const Each<float> work = memory.each<float>(compute.room, threads);
  for_each(threads, threads, [&](Index thread) {
    const Part some = alone ? part(p.count, threads, thread) : Part{0, p.count};
    for (Index i = some.begin; i < some.begin + some.size; ++i)
      compute(alone ? nth(i) : share_of(p, nth(i), threads, across, thread), work.of(thread));
  });
}

}  // namespace abele

using namespace abele;

int abele_product(const AbeleProduct* sizes, const void* a, const void* b, void* c, int threads) {
  return guarded([&](Scratch& memory) { product(*sizes, a, b, c, threads, memory); });
}

int abele_product_clamped(const AbeleProduct* product, const float* a, const float* packed,
                          const float* bias, const float* added, double low, double high, float* c,
                          int threads) {
  const AbeleProduct& p = *product;
  // What is in c already is added first: parts of sums would be written over it.
  const Finish finish{bias, added == c ? nullptr : added, float(low), float(high)};
  if (p.rows == 1 && threads == 1) {
    Share share = whole(p, a, packed, c);
    share.added = added == c, share.finish = &finish, share.first = c;
    return multiply_row(share), ABELE_OK;
  }
  return guarded([&](Scratch& memory) {
    const int across = threads == 1 ? 1 : static_cast<int>(column_parts(p, threads));
    const Each<float> work = memory.each<float>(WORK, threads);
    for_each(threads, threads, [&](Index thread) {
      Share share = share_of(p, whole(p, a, packed, c), threads, across, thread);
      share.added = added == c, share.finish = &finish, share.first = c;
      if (share.rows > 0 && share.columns > 0) multiply(share, work.of(thread));
    });
  });
}

int abele_product_by_rows(const AbeleProduct* product, const void* a, const void* b,
                          AbeleRows then, void* context, int threads) {
  return guarded([&](Scratch& memory) {
    AbeleProduct p = with_pairs(*product);
    p.added = 0;
    const Index most = std::max(KEPT / std::max<Index>(p.columns, 1) / Blocks::MOST, PRODUCT_ROWS);
    const Index blocks = row_blocks(p, most, threads);
    const Index tiles = ceil_div(ceil_div(p.rows, PRODUCT_ROWS), blocks) * Blocks::MOST;
    multiply_rows(p, a, b, nullptr, blocks, tiles * PRODUCT_ROWS * p.c_row, threads, memory,
                  [&](const float* c, Part rows) { then(context, c, rows.begin, rows.size); });
  });
}

int abele_product_pack(const AbeleProduct* product, const void* b, float* packed, int threads) {
  pack_all(*product, b, packed, threads);
  return ABELE_OK;
}
