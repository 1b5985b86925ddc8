// Rows of tables, by number.
#pragma once

#include "parallel.h"

namespace abele {

// Of outer x size x inner, the `count` rows of numbers `index`, which are the same for all.
template <int most, class T>
inline void select_rows(Index outer, Index size, Index inner, Index count, const T* x,
                        const int64_t* index, T* y, int threads) {
  share<most>(outer * count, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const T* from = x + (task / count * size + index[task % count]) * inner;
      for (Index k = 0; k < inner; ++k) y[task * inner + k] = from[k];
    }
  });
}

// The opposite: rows are written or added to those of numbers `index`, one after the other.
template <bool add, class T>
inline void put_rows(Index outer, Index size, Index inner, Index count, const T* rows,
                     const int64_t* index, T* y) {
  for (Index task = 0; task < outer * count; ++task) {
    T* to = y + (task / count * size + index[task % count]) * inner;
    const T* from = rows + task * inner;
#pragma GCC ivdep
    for (Index k = 0; k < inner; ++k) to[k] = add ? T(to[k] + from[k]) : from[k];
  }
}

// Of outer x size x inner, for each element of `index` the one with this number in the middle.
template <int most, class T>
inline void gather(Index outer, Index size, Index inner, Index count, const T* x,
                   const int64_t* index, T* y, int threads) {
  share<most>(outer * count, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const T* from = x + task / count * size * inner;
      for (Index k = 0; k < inner; ++k)
        y[task * inner + k] = from[index[task * inner + k] * inner + k];
    }
  });
}

// The opposite. `step` is 0 if `values` is one number.
template <bool add, class T>
inline void scatter(Index outer, Index size, Index inner, Index count, const T* values, Index step,
                    const int64_t* index, T* y) {
  for (Index task = 0; task < outer * count; ++task) {
    T* to = y + task / count * size * inner;
    for (Index k = 0; k < inner; ++k) {
      const Index at = task * inner + k;
      T& element = to[index[at] * inner + k];
      element = add ? T(element + values[at * step]) : values[at * step];
    }
  }
}

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
