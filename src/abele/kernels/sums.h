// Sums, in an order that does not depend on how many threads there are.
#pragma once

#include <algorithm>
#include <cmath>

#include "abi.h"
#include "parallel.h"

namespace abele {

constexpr int LANES = 16;

// The sum of f(0) .. f(n - 1) in so many partial sums, joined as a tree: the same on every machine
// with vectors of any length, and as accurate as pairs of sums are.
template <int lanes, class F>
inline auto sum_in_lanes(Index n, F f) -> decltype(f(Index(0))) {
  decltype(f(Index(0))) sums[lanes] = {};
  Index i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int l = 0; l < lanes; ++l) sums[l] += f(i + l);
  for (int l = 0; l < lanes && i < n; ++i, ++l) sums[l] += f(i);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) sums[l] += sums[l + width];
  return sums[0];
}
// Several vectors at a time hide how long an addition takes.
template <class F>
inline auto sum_of(Index n, F f) {
  return n < 16 * LANES ? sum_in_lanes<LANES>(n, f) : sum_in_lanes<4 * LANES>(n, f);
}

// Two sums at once.
struct Pair {
  float first, second;
};
template <int lanes, class F>
inline Pair sums_in_lanes(Index n, F f) {
  float a[lanes] = {}, b[lanes] = {};
  Index i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int l = 0; l < lanes; ++l) {
      const Pair pair = f(i + l);
      a[l] += pair.first, b[l] += pair.second;
    }
  for (int l = 0; l < lanes && i < n; ++i, ++l) {
    const Pair pair = f(i);
    a[l] += pair.first, b[l] += pair.second;
  }
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) a[l] += a[l + width], b[l] += b[l + width];
  return {a[0], b[0]};
}
template <class F>
inline Pair sums_of(Index n, F f) {
  // Of two sums in single vectors, compilers make no vector code.
  return n < 16 * LANES ? sums_in_lanes<2 * LANES>(n, f) : sums_in_lanes<4 * LANES>(n, f);
}

// The type in which sums of many sums are kept.
template <class T>
struct Wide {
  using Type = T;
};
template <>
struct Wide<float> {
  using Type = double;
};

constexpr Index SHORT = 32 * LANES;  // so many floats are added before the sum is widened
constexpr Index PARTS = 16;          // of a sum that threads share
constexpr Index SUMS = 4;            // of columns that they share at a time

// The same for long ones: sums of SHORT elements are added in the wide type.
template <class F>
inline auto long_sum_of(Index n, F f) {
  typename Wide<decltype(f(Index(0)))>::Type total = 0;
  for (Index first = 0; first < n; first += SHORT) {
    const Index count = n - first < SHORT ? n - first : SHORT;
    total += sum_of(count, [=](Index i) { return f(first + i); });
  }
  return total;
}

// One sum that threads share, in PARTS parts.
template <int most, class F>
inline auto shared_sum_of(Index n, int threads, F f) {
  using R = typename Wide<decltype(f(Index(0)))>::Type;
  if (most == 1) return R(long_sum_of(n, f));
  R sums[PARTS];
  share<most>(PARTS, threads, [&](Index begin, Index end) {
    for (Index part = begin; part < end; ++part) {
      const Index first = n / LANES * part / PARTS * LANES;
      const Index last = part == PARTS - 1 ? n : n / LANES * (part + 1) / PARTS * LANES;
      sums[part] = long_sum_of(last - first, [=](Index i) { return f(first + i); });
    }
  });
  R total = 0;
  for (Index part = 0; part < PARTS; ++part) total += sums[part];
  return total;
}

using Dim = AbeleDim;
constexpr int COLUMNS = 64;   // partial sums that stay in registers and the first-level cache
constexpr Index BLOCK = 16;   // rows whose sum is rounded by itself, as many as in torch
constexpr Index TOGETHER = 32;  // chunks of columns of which blocks of rows are read in turns

// Sums of `width` columns over rows first .. last - 1 of far x near; of `norm`, of their squares.
template <bool norm, class R, class T>
inline void add_rows(Dim far, Dim near, Index first, Index last, Index width, const T* source,
                     typename Wide<R>::Type* total) {
  R part[COLUMNS] = {};
  const auto term = [](R value) { return norm ? value * value : value; };
  for (Index k = 0; k < COLUMNS; ++k) total[k] = 0;
  Index r = first / near.size, s = first % near.size, rows = 0;
  for (Index row = first; row < last; ++row) {
    const T* values = source + r * far.stride + s * near.stride;
    if (width == COLUMNS)
      for (Index k = 0; k < COLUMNS; ++k) part[k] += term(values[k]);
    else
      for (Index k = 0; k < width; ++k) part[k] += term(values[k]);
    if (++s == near.size) s = 0, ++r;
    if (++rows == BLOCK || row == last - 1) {
      for (Index k = 0; k < COLUMNS; ++k) total[k] += part[k], part[k] = R(0);
      rows = 0;
    }
  }
}

// The result of a sum of terms, which for a norm are squares.
template <bool norm, class W>
inline W reduced(W scale, W total) {
  if constexpr (norm) total = W(std::sqrt(total));
  return scale * total;
}

// to[k] = scale * sum over r of from[k, r], or with `norm` the root of the sum of squares; `inner` is
// the innermost kept dimension with stride 1. With `split` threads share the rows of some sums at a
// time, otherwise the columns.
template <int most, bool split, bool norm, class T, class R>
inline void sum_columns(Dim outer, Dim inner, Dim far, Dim near, double scale, const T* from,
                        R* to, int threads) {
  using W = typename Wide<R>::Type;
  const Index chunks = (inner.size + COLUMNS - 1) / COLUMNS, rows = far.size * near.size;
  const auto sum = [=](Index task, Index first, Index last, W* total) {
    const Index column = task % chunks * COLUMNS, left = inner.size - column;
    const T* source = from + task / chunks * outer.stride + column;
    add_rows<norm, R>(far, near, first, last, left < COLUMNS ? left : COLUMNS, source, total);
  };
  const auto write = [=](Index task, const W* total) {
    const Index column = task % chunks * COLUMNS, left = inner.size - column;
    R* result = to + task / chunks * outer.result + column;
    for (Index k = 0; k < COLUMNS && k < left; ++k)
      result[k] = static_cast<R>(reduced<norm>(W(scale), total[k]));
  };
  if (!split)
    return share<most>(outer.size * chunks, threads, [=](Index begin, Index end) {
      // Rows are read in the order of memory, and each sum is that of its blocks.
      for (Index task = begin, after; task < end; task = after) {
        after = std::min({end, (task / chunks + 1) * chunks, task + TOGETHER});
        W totals[TOGETHER][COLUMNS] = {}, some[COLUMNS];
        for (Index row = 0; row < rows; row += BLOCK)
          for (Index i = 0; i < after - task; ++i) {
            sum(task + i, row, std::min(row + BLOCK, rows), some);
            for (Index k = 0; k < COLUMNS; ++k) totals[i][k] += some[k];
          }
        for (Index i = 0; i < after - task; ++i) write(task + i, totals[i]);
      }
    });
  const Index tasks = outer.size * chunks;
  for (Index done = 0; done < tasks; done += SUMS) {
    const Index some = tasks - done < SUMS ? tasks - done : SUMS;
    W parts[SUMS][PARTS][COLUMNS];
    share<most>(some * PARTS, threads, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) {
        const Index p = i % PARTS;
        sum(done + i / PARTS, rows * p / PARTS, rows * (p + 1) / PARTS, parts[i / PARTS][p]);
      }
    });
    for (Index task = 0; task < some; ++task) {
      W(&all)[PARTS][COLUMNS] = parts[task];
      for (Index p = 1; p < PARTS; ++p)
        for (Index k = 0; k < COLUMNS; ++k) all[0][k] += all[p][k];
      write(done + task, all[0]);
    }
  }
}

// The same where the reduced dimension `near` is the innermost, with stride 1 or not.
template <int most, bool split, bool norm, class T, class R>
inline void sum_rows(Dim outer, Dim inner, Dim far, Dim near, double scale, const T* from, R* to,
                     int threads) {
  using W = typename Wide<R>::Type;
  const auto sum = [=](Index task, auto long_sum) {
    const T* source = from + task / inner.size * outer.stride + task % inner.size * inner.stride;
    const auto term = [](R value) { return norm ? value * value : value; };
    W total = 0;
    for (Index r = 0; r < far.size; ++r) {
      const T* row = source + r * far.stride;
      total += near.stride == 1
                   ? long_sum(near.size, [=](Index k) { return term(row[k]); })
                   : long_sum(near.size, [=](Index k) { return term(row[k * near.stride]); });
    }
    to[task / inner.size * outer.result + task % inner.size * inner.result] =
        static_cast<R>(reduced<norm>(W(scale), total));
  };
  if (split) {
    for (Index task = 0; task < outer.size * inner.size; ++task)
      sum(task, [=](Index n, auto f) { return shared_sum_of<most>(n, threads, f); });
    return;
  }
  share<most>(outer.size * inner.size, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task)
      sum(task, [](Index n, auto f) { return W(long_sum_of(n, f)); });
  });
}

}  // namespace abele
