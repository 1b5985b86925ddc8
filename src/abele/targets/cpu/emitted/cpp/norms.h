// Norms: groups of neighbouring elements get mean 0 and variance 1, then a weight and a bias.
#pragma once

#include "sums.h"

namespace abele {

// Mean and 1 / sqrt(variance + eps) of n neighbours.
inline Pair moments(const float* x, Index n, float eps) {
  const float mean = sum_of(n, [=](Index i) { return x[i]; }) / float(n);
  const float square = sum_of(n, [=](Index i) { return (x[i] - mean) * (x[i] - mean); });
  return {mean, 1.0f / std::sqrt(square / float(n) + eps)};
}

template <int most, bool weighted, bool biased>
inline void layer_norm(Index rows, Index size, float eps, const float* x, const float* weight,
                       const float* bias, float* y, float* mean, float* rstd, int threads) {
  share<most>(rows, threads, [=](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const float* from = x + row * size;
      const Pair stats = moments(from, size, eps);
      mean[row] = stats.first, rstd[row] = stats.second;
      const float scale = stats.second, shift = -stats.first * stats.second;
      float* to = y + row * size;
#pragma GCC ivdep
      for (Index i = 0; i < size; ++i) {
        const float plain = from[i] * scale + shift;
        to[i] = (weighted ? plain * weight[i] : plain) + (biased ? bias[i] : 0.0f);
      }
    }
  });
}

template <int most, bool weighted>
inline void layer_norm_backward(Index rows, Index size, const float* grad, const float* x,
                                const float* mean, const float* rstd, const float* weight,
                                float* grad_x, int threads) {
  share<most>(rows, threads, [=](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const float *g = grad + row * size, *from = x + row * size;
      const float m = mean[row], scale = rstd[row];
      const Pair sums = sums_of(size, [=](Index i) {
        const float value = weighted ? g[i] * weight[i] : g[i];
        return Pair{value, value * ((from[i] - m) * scale)};
      });
      const float a = sums.first / float(size), b = sums.second / float(size);
      float* to = grad_x + row * size;
#pragma GCC ivdep
      for (Index i = 0; i < size; ++i) {
        const float value = weighted ? g[i] * weight[i] : g[i];
        to[i] = scale * (value - a - (from[i] - m) * scale * b);
      }
    }
  });
}

// Gradients of weight and bias: sums over rows.
template <int most>
inline void layer_norm_weights(Index rows, Index size, const float* grad, const float* x,
                               const float* mean, const float* rstd, float* grad_weight,
                               float* grad_bias, int threads) {
  const Index chunks = (size + COLUMNS - 1) / COLUMNS;
  share<most>(chunks, threads, [=](Index begin, Index end) {
    for (Index chunk = begin; chunk < end; ++chunk) {
      const Index column = chunk * COLUMNS;
      const Index width = size - column < COLUMNS ? size - column : COLUMNS;
      float weights[COLUMNS] = {}, biases[COLUMNS] = {};
      for (Index row = 0; row < rows; ++row) {
        const float *g = grad + row * size + column, *from = x + row * size + column;
        const float m = mean[row], scale = rstd[row];
        for (Index k = 0; k < width; ++k)
          weights[k] += g[k] * ((from[k] - m) * scale), biases[k] += g[k];
      }
      for (Index k = 0; k < width; ++k)
        grad_weight[column + k] = weights[k], grad_bias[column + k] = biases[k];
    }
  });
}

// Samples x channels x pixels, statistics over groups of channels.
template <int most>
inline void group_norm(Index samples, Index channels, Index pixels, Index groups, float eps,
                       const float* x, const float* weight, const float* bias, float* y,
                       float* mean, float* rstd, int threads) {
  const Index each = channels / groups;
  share<most>(samples * groups, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const float* from = x + task * each * pixels;
      float* to = y + task * each * pixels;
      const Pair stats = moments(from, each * pixels, eps);
      mean[task] = stats.first, rstd[task] = stats.second;
      for (Index c = 0; c < each; ++c) {
        const Index channel = task % groups * each + c;
        const float scale = stats.second * weight[channel];
        const float shift = bias[channel] - stats.first * scale;
#pragma GCC ivdep
        for (Index i = 0; i < pixels; ++i) to[c * pixels + i] = from[c * pixels + i] * scale + shift;
      }
    }
  });
}

template <int most>
inline void group_norm_backward(Index samples, Index channels, Index pixels, Index groups,
                                const float* grad, const float* x, const float* mean,
                                const float* rstd, const float* weight, float* grad_x,
                                float* sums, int threads) {
  const Index each = channels / groups;
  share<most>(samples * groups, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const float m = mean[task], scale = rstd[task];
      float a = 0.0f, b = 0.0f;
      for (Index c = 0; c < each; ++c) {
        const Index plane = task * each + c;
        const float *g = grad + plane * pixels, *from = x + plane * pixels;
        const Pair pair = sums_of(pixels, [=](Index i) {
          return Pair{g[i], g[i] * ((from[i] - m) * scale)};
        });
        sums[2 * plane] = pair.first, sums[2 * plane + 1] = pair.second;
        const float w = weight[task % groups * each + c];
        a += pair.first * w, b += pair.second * w;
      }
      const float count = float(each * pixels);
      a /= count, b /= count;
      for (Index c = 0; c < each; ++c) {
        const Index plane = task * each + c;
        const float *g = grad + plane * pixels, *from = x + plane * pixels;
        const float w = weight[task % groups * each + c];
        float* to = grad_x + plane * pixels;
#pragma GCC ivdep
        for (Index i = 0; i < pixels; ++i)
          to[i] = scale * (g[i] * w - a - (from[i] - m) * scale * b);
      }
    }
  });
}

// Gradients of weight and bias, from the sums of each plane.
inline void group_norm_weights(Index samples, Index channels, const float* sums,
                               float* grad_weight, float* grad_bias) {
  for (Index c = 0; c < channels; ++c) grad_weight[c] = grad_bias[c] = 0.0f;
  for (Index n = 0; n < samples; ++n)
    for (Index c = 0; c < channels; ++c) {
      grad_bias[c] += sums[2 * (n * channels + c)];
      grad_weight[c] += sums[2 * (n * channels + c) + 1];
    }
}

}  // namespace abele
