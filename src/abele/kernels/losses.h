// Softmax and negative log-likelihood.
#pragma once

#include "activations.h"
#include "sums.h"

namespace abele {

// The largest of n neighbours that are numbers; minus infinity if there are none. Where NaN reaches
// the result by another way, this is a quarter of the work.
inline float largest_number(Index n, const float* x) {
  const auto larger = [](float a, float b) { return a > b ? a : b; };
  float lanes[LANES];
  for (int l = 0; l < LANES; ++l) lanes[l] = -std::numeric_limits<float>::infinity();
  Index i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l) lanes[l] = larger(x[i + l], lanes[l]);
  for (int l = 0; l < LANES && i < n; ++i, ++l) lanes[l] = larger(x[i], lanes[l]);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] = larger(lanes[l + width], lanes[l]);
  return lanes[0];
}

// Softmax over the middle of outer x size x inner; LOG: its logarithm; SAFE: 0 where all are -inf.
enum Softmax { PLAIN, LOG, SAFE };
inline float shift_of(int kind, float largest) {
  return kind == SAFE && largest == -std::numeric_limits<float>::infinity() ? 0.0f : largest;
}
template <int kind>
inline void softmax_row(Index size, const float* x, float* y) {
  const float largest = shift_of(kind, largest_number(size, x));  // the sum of all has NaN, too
  if (kind == LOG) {
    const float total = sum_of(size, [=](Index i) { return exp_up_to_88(x[i] - largest); });
    const float shift = std::log(total);
#pragma GCC ivdep
    for (Index i = 0; i < size; ++i) y[i] = x[i] - largest - shift;
  } else {
#pragma GCC ivdep
    for (Index i = 0; i < size; ++i) y[i] = exp_up_to_88(x[i] - largest);
    const float total = sum_of(size, [=](Index i) { return y[i]; });
    if (kind == SAFE && total == 0.0f) return;
#pragma GCC ivdep
    for (Index i = 0; i < size; ++i) y[i] /= total;
  }
}

// The same for up to COLUMNS neighbours at once, each of `size` elements `inner` apart.
template <int kind>
inline void softmax_columns(Index size, Index inner, Index width, const float* x, float* y) {
  float largest[COLUMNS], total[COLUMNS] = {};
  for (Index k = 0; k < width; ++k) largest[k] = x[k];
  for (Index i = 1; i < size; ++i)
    for (Index k = 0; k < width; ++k) largest[k] = maximum(largest[k], x[i * inner + k]);
  for (Index k = 0; k < width; ++k) largest[k] = shift_of(kind, largest[k]);
  for (Index i = 0; i < size; ++i)
#pragma GCC ivdep
    for (Index k = 0; k < width; ++k) {
      const float value = exp_up_to_88(x[i * inner + k] - largest[k]);
      total[k] += value;
      if (kind != LOG) y[i * inner + k] = value;
    }
  for (Index k = 0; k < width; ++k)
    if (kind != SAFE || total[k] != 0.0f)
      total[k] = kind == LOG ? abele::log(total[k]) : 1.0f / total[k];
  for (Index i = 0; i < size; ++i)
#pragma GCC ivdep
    for (Index k = 0; k < width; ++k) {
      const Index at = i * inner + k;
      y[at] = kind == LOG ? x[at] - largest[k] - total[k] : y[at] * total[k];
    }
}

template <int most, int kind>
inline void softmax(Index outer, Index size, Index inner, const float* x, float* y, int threads) {
  const Index chunks = (inner + COLUMNS - 1) / COLUMNS;
  share<most>(outer * chunks, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const Index first = task % chunks * COLUMNS, at = task / chunks * size * inner + first;
      const Index width = inner - first < COLUMNS ? inner - first : COLUMNS;
      if (inner == 1)
        softmax_row<kind>(size, x + at, y + at);
      else
        softmax_columns<kind>(size, inner, width, x + at, y + at);
    }
  });
}

// Gradients of both, from the result.
template <int most, bool log>
inline void softmax_backward(Index outer, Index size, Index inner, const float* grad,
                             const float* y, float* grad_x, int threads) {
  const Index chunks = (inner + COLUMNS - 1) / COLUMNS;
  const auto term = [](float g, float value) { return log ? g : g * value; };
  const auto slope = [](float g, float value, float total) {
    return log ? g - exp_up_to_88(value) * total : value * (g - total);
  };
  share<most>(outer * chunks, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const Index first = task % chunks * COLUMNS, at = task / chunks * size * inner + first;
      const Index width = inner - first < COLUMNS ? inner - first : COLUMNS;
      const float *g = grad + at, *from = y + at;
      float* to = grad_x + at;
      if (inner == 1) {
        const float total = sum_of(size, [=](Index i) { return term(g[i], from[i]); });
#pragma GCC ivdep
        for (Index i = 0; i < size; ++i) to[i] = slope(g[i], from[i], total);
        continue;
      }
      float total[COLUMNS] = {};
      for (Index i = 0; i < size; ++i)
        for (Index k = 0; k < width; ++k) total[k] += term(g[i * inner + k], from[i * inner + k]);
      for (Index i = 0; i < size; ++i)
#pragma GCC ivdep
        for (Index k = 0; k < width; ++k)
          to[i * inner + k] = slope(g[i * inner + k], from[i * inner + k], total[k]);
    }
  });
}

// Classes in the middle of outer x size x inner; `kind` is 0 for each, 1 for the mean, 2 for the
// sum. Classes may have weights.
template <int most, int kind>
inline void nll_loss(Index outer, Index size, Index inner, int64_t ignored, const float* x,
                     const int64_t* target, const float* weights, float* loss, float* weight,
                     int threads) {
  const Index n = outer * inner;
  double totals[PARTS], counts[PARTS];
  share<most>(PARTS, threads, [&](Index begin, Index end) {
    for (Index part = begin; part < end; ++part) {
      double total = 0.0, count = 0.0;
      for (Index task = n * part / PARTS; task < n * (part + 1) / PARTS; ++task) {
        const int64_t label = target[task];
        float value = 0.0f;
        if (label != ignored) {
          const float w = weights == nullptr ? 1.0f : weights[label];
          value = -w * x[(task / inner * size + label) * inner + task % inner];
          count += w;
        }
        if (kind == 0) loss[task] = value;
        total += value;
      }
      totals[part] = total, counts[part] = count;
    }
  });
  for (Index part = 1; part < PARTS; ++part)
    totals[0] += totals[part], counts[0] += counts[part];
  if (kind != 0) *loss = static_cast<float>(kind == 1 ? totals[0] / counts[0] : totals[0]);
  *weight = static_cast<float>(kind == 0 ? 0.0 : counts[0]);
}

template <int most, int kind>
inline void nll_loss_backward(Index outer, Index size, Index inner, int64_t ignored,
                              const float* grad, const int64_t* target, const float* weights,
                              const float* weight, float* grad_x, int threads) {
  const float scale = kind == 0 ? 1.0f : kind == 1 ? *grad / *weight : *grad;
  const auto of = [=](Index task, int64_t label) {
    const float plain = kind == 0 ? -grad[task] : -scale;
    if (label == ignored) return 0.0f;
    return weights == nullptr ? plain : plain * weights[label];
  };
  const Index chunks = (inner + COLUMNS - 1) / COLUMNS;
  share<most>(outer * chunks, threads, [=](Index begin, Index end) {
    for (Index part = begin; part < end; ++part) {
      const Index first = part % chunks * COLUMNS, o = part / chunks;
      const Index width = inner - first < COLUMNS ? inner - first : COLUMNS;
      float values[COLUMNS];
      const int64_t* labels = target + o * inner + first;
      for (Index k = 0; k < width; ++k) values[k] = of(o * inner + first + k, labels[k]);
      float* to = grad_x + o * size * inner + first;
      if (inner == 1) {
        for (Index i = 0; i < size; ++i) to[i] = 0.0f;
        if (labels[0] != ignored) to[labels[0]] = values[0];
        continue;
      }
      for (Index i = 0; i < size; ++i)
#pragma GCC ivdep
        for (Index k = 0; k < width; ++k) to[i * inner + k] = labels[k] == i ? values[k] : 0.0f;
    }
  });
}

}  // namespace abele
