// Rows of tables, by number.
#pragma once

#include "parallel.h"

namespace abele {

inline void embedding(Index count, Index width, const float* table, const int64_t* rows, float* y) {
  for (Index i = 0; i < count; ++i)
    for (Index k = 0; k < width; ++k) y[i * width + k] = table[rows[i] * width + k];
}

// Threads share the columns, so that each sum has one order.
template <int most>
inline void embedding_backward(Index count, Index width, Index size, int64_t padding,
                               const float* grad, const int64_t* rows, float* grad_table,
                               int threads) {
  constexpr Index GRAIN = 16;
  share<most>((width + GRAIN - 1) / GRAIN, threads, [=](Index begin, Index end) {
    const Index first = begin * GRAIN, last = end * GRAIN < width ? end * GRAIN : width;
    for (Index row = 0; row < size; ++row)
      for (Index k = first; k < last; ++k) grad_table[row * width + k] = 0.0f;
    for (Index i = 0; i < count; ++i) {
      if (rows[i] == padding) continue;
      float* to = grad_table + rows[i] * width;
      const float* from = grad + i * width;
#pragma GCC ivdep
      for (Index k = first; k < last; ++k) to[k] += from[k];
    }
  });
}

}  // namespace abele
