// Norms: groups of neighbouring elements get mean 0 and variance 1, then a weight and a bias.
#pragma once

#include <limits>

#include "sums.h"

namespace abele {

// Mean and 1 / sqrt(variance + eps) of n neighbours.
template <class In>
inline Pair moments(const In* x, Index n, float eps) {
  const float mean = sum_of(n, [=](Index i) { return float(x[i]); }) / float(n);
  const float square = sum_of(n, [=](Index i) { return (x[i] - mean) * (x[i] - mean); });
  const float variance = square / float(n);
  // 1 / sqrt(inf) is 0, so that a diverged row would look finite. Torch gives NaN from 1e20 on.
  constexpr float largest = std::numeric_limits<float>::max();
  return {mean, variance <= largest ? 1.0f / std::sqrt(variance + eps)
                                    : std::numeric_limits<float>::quiet_NaN()};
}

// With `weighted` there is a bias, too. Rows and their gradients may have 16 bits.
template <int most, bool weighted, class In, class Out>
inline void layer_norm(Index rows, Index size, float eps, const In* x, const float* weight,
                       const float* bias, Out* y, float* mean, float* rstd, int threads) {
  share<most>(rows, threads, [=](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const In* from = x + row * size;
      const Pair stats = moments(from, size, eps);
      mean[row] = stats.first, rstd[row] = stats.second;
      // Not x * scale + shift: where the mean is large, its digits would be lost.
      const float m = stats.first, scale = stats.second;
      Out* to = y + row * size;
#pragma GCC ivdep
      for (Index i = 0; i < size; ++i) {
        const float plain = (from[i] - m) * scale;
        to[i] = weighted ? plain * weight[i] + bias[i] : plain;
      }
    }
  });
}

template <int most, bool weighted, class Grad, class In, class Out>
inline void layer_norm_backward(Index rows, Index size, const Grad* grad, const In* x,
                                const float* mean, const float* rstd, const float* weight,
                                Out* grad_x, int threads) {
  share<most>(rows, threads, [=](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const Grad* g = grad + row * size;
      const In* from = x + row * size;
      const float m = mean[row], scale = rstd[row];
      const Pair sums = sums_of(size, [=](Index i) {
        const float value = weighted ? g[i] * weight[i] : float(g[i]);
        return Pair{value, value * ((from[i] - m) * scale)};
      });
      const float a = sums.first / float(size), b = sums.second / float(size);
      Out* to = grad_x + row * size;
#pragma GCC ivdep
      for (Index i = 0; i < size; ++i) {
        const float value = weighted ? g[i] * weight[i] : float(g[i]);
        to[i] = scale * (value - a - (from[i] - m) * scale * b);
      }
    }
  });
}

// Gradients of weight and bias: sums over rows. Threads share columns, at least a line of them.
template <int most, class Grad, class In>
inline void layer_norm_weights(Index rows, Index size, const Grad* grad, const In* x,
                               const float* mean, const float* rstd, float* grad_weight,
                               float* grad_bias, int threads) {
  Index columns = COLUMNS;
  while (columns > LANES && size < columns * (threads < most ? threads : most)) columns /= 2;
  share<most>((size + columns - 1) / columns, threads, [=](Index begin, Index end) {
    for (Index chunk = begin; chunk < end; ++chunk) {
      const Index column = chunk * columns;
      const Index width = size - column < columns ? size - column : columns;
      double weights[COLUMNS] = {}, biases[COLUMNS] = {};
      for (Index first = 0; first < rows; first += BLOCK) {
        float some_weights[COLUMNS] = {}, some_biases[COLUMNS] = {};
        const Index last = first + BLOCK < rows ? first + BLOCK : rows;
        for (Index row = first; row < last; ++row) {
          const Grad* g = grad + row * size + column;
          const In* from = x + row * size + column;
          const float m = mean[row], scale = rstd[row];
          for (Index k = 0; k < width; ++k)
            some_weights[k] += g[k] * ((from[k] - m) * scale), some_biases[k] += g[k];
        }
        for (Index k = 0; k < width; ++k) weights[k] += some_weights[k], biases[k] += some_biases[k];
      }
      for (Index k = 0; k < width; ++k)
        grad_weight[column + k] = float(weights[k]), grad_bias[column + k] = float(biases[k]);
    }
  });
}

// Samples x channels x pixels, statistics over groups of channels. Of groups, x, y and the gradients
// may have 16 bits.
template <int most, class In, class Out>
inline void group_norm(Index samples, Index channels, Index pixels, Index groups, float eps,
                       const In* x, const float* weight, const float* bias, Out* y, float* mean,
                       float* rstd, int threads) {
  const Index each = channels / groups;
  share<most>(samples * groups, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const In* from = x + task * each * pixels;
      Out* to = y + task * each * pixels;
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

// With `masked`, x went through a ReLU, and the gradient does as well.
template <int most, bool masked, class Grad, class In, class Out>
inline void group_norm_backward(Index samples, Index channels, Index pixels, Index groups,
                                const Grad* grad, const In* x, const float* mean,
                                const float* rstd, const float* weight, Out* grad_x, float* sums,
                                int threads) {
  const Index each = channels / groups;
  share<most>(samples * groups, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const float m = mean[task], scale = rstd[task];
      float a = 0.0f, b = 0.0f;
      for (Index c = 0; c < each; ++c) {
        const Index plane = task * each + c;
        const Grad* g = grad + plane * pixels;
        const In* from = x + plane * pixels;
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
        const Grad* g = grad + plane * pixels;
        const In* from = x + plane * pixels;
        const float w = weight[task % groups * each + c];
        Out* to = grad_x + plane * pixels;
#pragma GCC ivdep
        for (Index i = 0; i < pixels; ++i) {
          const float value = scale * (g[i] * w - a - (from[i] - m) * scale * b);
          to[i] = masked && from[i] <= 0.0f ? 0.0f : value;
        }
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

// -- batch norm: statistics of each channel of samples x channels x pixels ------------------------

// Sums of f(channel, index) over samples and pixels, for `count` channels from `first` on.
template <class F>
inline void channel_sums(Index samples, Index channels, Index pixels, Index first, Index count,
                         double* sums, F f) {
  for (Index k = 0; k < count; ++k) sums[k] = 0.0;
  if (pixels == 1) {
    for (Index n = 0; n < samples; ++n)
#pragma GCC ivdep
      for (Index k = 0; k < count; ++k) sums[k] += f(first + k, n * channels + first + k);
    return;
  }
  for (Index k = 0; k < count; ++k)
    for (Index n = 0; n < samples; ++n) {
      const Index plane = (n * channels + first + k) * pixels, c = first + k;
      sums[k] += long_sum_of(pixels, [=](Index i) { return f(c, plane + i); });
    }
}

// Statistics of a batch, and the running ones after it, of the channels from `begin` to `end`.
inline void channel_statistics(Index begin, Index end, Index samples, Index channels, Index pixels,
                               float eps, float momentum, const float* x,
                               const float* running_mean, const float* running_var, float* mean,
                               float* rstd, float* next_mean, float* next_var) {
  const double count = double(samples * pixels);
  for (Index first = begin; first < end; first += COLUMNS) {
    const Index width = end - first < COLUMNS ? end - first : COLUMNS;
    double sums[COLUMNS];
    channel_sums(samples, channels, pixels, first, width, sums,
                 [=](Index, Index i) { return x[i]; });
    for (Index k = 0; k < width; ++k) mean[first + k] = float(sums[k] / count);
    channel_sums(samples, channels, pixels, first, width, sums, [=](Index c, Index i) {
      return (x[i] - mean[c]) * (x[i] - mean[c]);
    });
    for (Index k = 0; k < width; ++k) {
      const Index c = first + k;
      rstd[c] = float(1.0 / std::sqrt(sums[k] / count + eps));
      if (next_mean == nullptr) continue;
      next_mean[c] = momentum * mean[c] + (1.0f - momentum) * running_mean[c];
      const float unbiased = float(sums[k] / (count - 1.0));
      next_var[c] = momentum * unbiased + (1.0f - momentum) * running_var[c];
    }
  }
}

// Gradients of the bias and of the weight, of the channels from `begin` to `end`: sums of grad and of
// grad times the normalised x. Samples of grad are `stride` elements apart.
inline void channel_gradients(Index begin, Index end, Index samples, Index channels, Index pixels,
                              Index stride, const float* grad, const float* x, const float* mean,
                              const float* rstd, float* grad_weight, float* grad_bias) {
  if (pixels > 1) {
    for (Index c = begin; c < end; ++c) {
      const float m = mean[c];
      double plain = 0.0, scaled = 0.0;
      for (Index n = 0; n < samples; ++n)
        for (Index first = 0; first < pixels; first += SHORT) {
          const float* g = grad + n * stride + c * pixels + first;
          const float* from = x + (n * channels + c) * pixels + first;
          const Index count = pixels - first < SHORT ? pixels - first : SHORT;
          const Pair sums = sums_of(count, [=](Index i) { return Pair{g[i], g[i] * (from[i] - m)}; });
          plain += sums.first, scaled += sums.second;
        }
      grad_bias[c] = float(plain), grad_weight[c] = float(scaled * rstd[c]);
    }
    return;
  }
  for (Index first = begin; first < end; first += COLUMNS) {
    const Index width = end - first < COLUMNS ? end - first : COLUMNS;
    double plain[COLUMNS], scaled[COLUMNS];
    channel_sums(samples, channels, pixels, first, width, plain,
                 [=](Index, Index i) { return grad[i]; });
    channel_sums(samples, channels, pixels, first, width, scaled,
                 [=](Index c, Index i) { return grad[i] * (x[i] - mean[c]); });
    for (Index k = 0; k < width; ++k) {
      grad_bias[first + k] = float(plain[k]);
      grad_weight[first + k] = float(scaled[k] * rstd[first + k]);
    }
  }
}

}  // namespace abele
