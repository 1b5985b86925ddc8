// Operands of GEMMs: matrices of float32, or of 16 bits, which are converted where they are packed.
//
// Blocks are converted next to the registers that read them: no float32 copy of a matrix is in memory.
#pragma once

#include "dots.h"
#include "half.h"
#include "tiles.h"

namespace abele {

// Beside those of abi.h: pairs of bfloat16 numbers along the inner dimension, of which elements count, and
// such numbers that become pairs where they are packed: those of a pair are half a step of the inner
// dimension apart.
enum { PAIRS = 3, UNPAIRED = 4 };

// A matrix of any type; one of its two steps is 1.
struct Operand {
  const void* data;
  Index row, column;
  Index type;

  bool narrow() const { return type != ABELE_FLOAT32 && type != PAIRS; }
  Operand at(Index elements) const {
    const Index bytes = elements * (narrow() ? sizeof(uint16_t) : sizeof(float));
    return {static_cast<const char*>(data) + bytes, row, column, type};
  }
  Operand from(Index i, Index j) const { return at(i * row + j * column); }
  // Of float32.
  Matrix floats() const { return {static_cast<const float*>(data), row, column}; }
  // Steps of what asks for memory ahead, which counts floats.
  Matrix lines() const {
    if (!narrow()) return floats();
    return {floats().data, column == 1 ? row / 2 : row, column == 1 ? column : column / 2};
  }
};

// Rounds a row of float32 to a type of 16 bits.
inline void narrow_row(Index type, const float* from, Index count, void* to) {
  type == ABELE_FLOAT16 ? narrow<Half>(from, count, to) : round_to_bfloat(from, count, to);
}

// Numbers of a row or column, converted to float32, or paired with those of the next one.
inline void convert(Index type, const void* from, Index next, Index count, float* to) {
  if (type == UNPAIRED)
    pair_rows(from, static_cast<const uint16_t*>(from) + next, count, to);
  else
    type == ABELE_FLOAT16 ? widen<Half>(from, count, to) : widen<Bfloat>(from, count, to);
}

// A block of an operand in float32, or pairs: where it is, or converted to `memory` in the same order.
inline Matrix in_float32(const Operand& m, Index rows, Index columns, float* memory) {
  if (!m.narrow()) return m.floats();
  const bool in_rows = m.column == 1;
  const Index runs = in_rows ? rows : columns, length = in_rows ? columns : rows;
  const Index next = (in_rows ? m.row : m.column) / 2;
  for (Index i = 0; i < runs; ++i)
    convert(m.type, in_rows ? m.from(i, 0).data : m.from(0, i).data, next, length,
            memory + i * length);
  return in_rows ? Matrix{memory, columns, 1} : Matrix{memory, 1, rows};
}

// What pack_columns of tiles.h writes, from an operand; `turned` has room for such a panel.
template <bool fetch>
inline void pack_panel(const Operand& b, Index inner, Index columns, float* turned, float* to) {
  if (!b.narrow()) return pack_columns<fetch>(b.floats(), inner, columns, to);
  if (b.row == 1)
    return pack_columns<false>(in_float32(b, inner, columns, turned), inner, columns, to);
  for (Index p = 0; p < inner; ++p, to += PRODUCT_COLUMNS) {
    const void* row = b.from(p, 0).data;
    if (columns == PRODUCT_COLUMNS) {
      if (fetch) __builtin_prefetch(static_cast<const char*>(row) + 64, 0, LATER);
      convert(b.type, row, b.row / 2, PRODUCT_COLUMNS, to);
    } else {
      convert(b.type, row, b.row / 2, columns, to);
      std::fill(to + columns, to + PRODUCT_COLUMNS, 0.0f);
    }
  }
}

}  // namespace abele
