// Softmax and negative log-likelihood.
#pragma once

#include "sums.h"

namespace abele {

// Over the middle of outer x size x inner.
template <int most>
inline void log_softmax(Index outer, Index size, Index inner, const float* x, float* y, int threads) {
  share<most>(outer * inner, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const Index first = task / inner * size * inner + task % inner;
      float largest = -std::numeric_limits<float>::infinity();
      for (Index i = 0; i < size; ++i) largest = maximum(largest, x[first + i * inner]);
      const float total =
          sum_of(size, [=](Index i) { return exp(x[first + i * inner] - largest); });
      const float shift = largest + std::log(total);
#pragma GCC ivdep
      for (Index i = 0; i < size; ++i) y[first + i * inner] = x[first + i * inner] - shift;
    }
  });
}

template <int most>
inline void log_softmax_backward(Index outer, Index size, Index inner, const float* grad,
                                 const float* y, float* grad_x, int threads) {
  share<most>(outer * inner, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const Index first = task / inner * size * inner + task % inner;
      const float total = sum_of(size, [=](Index i) { return grad[first + i * inner]; });
#pragma GCC ivdep
      for (Index i = 0; i < size; ++i) {
        const Index at = first + i * inner;
        grad_x[at] = grad[at] - exp(y[at]) * total;
      }
    }
  });
}

// Classes in the middle of outer x size x inner; `kind` is 0 for each, 1 for the mean, 2 for the sum.
template <int kind>
inline void nll_loss(Index outer, Index size, Index inner, int64_t ignored, const float* x,
                     const int64_t* target, float* loss, float* weight) {
  double total = 0.0;
  Index counted = 0;
  for (Index task = 0; task < outer * inner; ++task) {
    const int64_t label = target[task];
    float value = 0.0f;
    if (label != ignored) {
      value = -x[(task / inner * size + label) * inner + task % inner];
      ++counted;
    }
    if (kind == 0) loss[task] = value;
    total += value;
  }
  if (kind != 0) *loss = static_cast<float>(kind == 1 ? total / double(counted) : total);
  *weight = static_cast<float>(kind == 0 ? 0 : counted);
}

template <int kind>
inline void nll_loss_backward(Index outer, Index size, Index inner, int64_t ignored,
                              const float* grad, const int64_t* target, const float* weight,
                              float* grad_x) {
  for (Index i = 0; i < outer * size * inner; ++i) grad_x[i] = 0.0f;
  for (Index task = 0; task < outer * inner; ++task) {
    const int64_t label = target[task];
    if (label == ignored) continue;
    const float value = kind == 0 ? grad[task] : kind == 1 ? *grad / *weight : *grad;
    grad_x[(task / inner * size + label) * inner + task % inner] = -value;
  }
}

}  // namespace abele
