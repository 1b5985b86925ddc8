// Sums, norms and losses over dense tensors of floats.
#pragma once

#include "parallel.h"

namespace abele {

constexpr int LANES = 16;

// The sum of f(0) .. f(n - 1) in LANES partial sums, joined as a tree: the same on every machine
// with vectors of any length, and as accurate as pairs of sums are.
template <class F>
inline float sum_of(Index n, F f) {
  float lanes[LANES] = {};
  Index i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l) lanes[l] += f(i + l);
  for (int l = 0; i < n; ++i, ++l) lanes[l] += f(i);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  return lanes[0];
}

// Two sums at once.
struct Pair {
  float first, second;
};
template <class F>
inline Pair sums_of(Index n, F f) {
  float a[LANES] = {}, b[LANES] = {};
  Index i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l) {
      const Pair pair = f(i + l);
      a[l] += pair.first, b[l] += pair.second;
    }
  for (int l = 0; i < n; ++i, ++l) {
    const Pair pair = f(i);
    a[l] += pair.first, b[l] += pair.second;
  }
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) a[l] += a[l + width], b[l] += b[l + width];
  return {a[0], b[0]};
}

// Sizes and strides of one dimension, in the source and in the result.
struct Dim {
  Index size, stride, result;
};
constexpr int COLUMNS = 64;      // partial sums that stay in registers and the first-level cache
constexpr Index BLOCK = 128;     // rows whose sum is rounded by itself

// to[k] = scale * sum over r of from[k, r]; `inner` is the innermost kept dimension with stride 1.
template <int most>
inline void sum_columns(Dim outer, Dim inner, Dim far, Dim near, float scale, const float* from,
                        float* to, int threads) {
  const Index chunks = (inner.size + COLUMNS - 1) / COLUMNS;
  share<most>(outer.size * chunks, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const Index o = task / chunks, column = task % chunks * COLUMNS;
      const Index width = inner.size - column < COLUMNS ? inner.size - column : COLUMNS;
      const float* source = from + o * outer.stride + column;
      float total[COLUMNS] = {}, part[COLUMNS] = {};
      Index rows = 0;
      for (Index r = 0; r < far.size; ++r)
        for (Index s = 0; s < near.size; ++s) {
          const float* row = source + r * far.stride + s * near.stride;
          if (width == COLUMNS)
            for (Index k = 0; k < COLUMNS; ++k) part[k] += row[k];
          else
            for (Index k = 0; k < width; ++k) part[k] += row[k];
          if (++rows == BLOCK) {
            for (Index k = 0; k < COLUMNS; ++k) total[k] += part[k], part[k] = 0.0f;
            rows = 0;
          }
        }
      float* result = to + o * outer.result + column;
      for (Index k = 0; k < width; ++k) result[k] = scale * (total[k] + part[k]);
    }
  });
}

// The same where the reduced dimension `near` is the innermost, with stride 1 or not.
template <int most>
inline void sum_rows(Dim outer, Dim inner, Dim far, Dim near, float scale, const float* from,
                     float* to, int threads) {
  share<most>(outer.size * inner.size, threads, [=](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const Index o = task / inner.size, i = task % inner.size;
      const float* source = from + o * outer.stride + i * inner.stride;
      float total = 0.0f;
      for (Index r = 0; r < far.size; ++r) {
        const float* row = source + r * far.stride;
        for (Index s = 0; s < near.size; s += BLOCK * LANES) {
          const Index count = near.size - s < BLOCK * LANES ? near.size - s : BLOCK * LANES;
          const float* part = row + s * near.stride;
          total += near.stride == 1 ? sum_of(count, [=](Index k) { return part[k]; })
                                    : sum_of(count, [=](Index k) { return part[k * near.stride]; });
        }
      }
      to[o * outer.result + i * inner.result] = scale * total;
    }
  });
}

// -- norms: groups of `size` neighbouring elements, `channels` of them with a weight each ----------

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

// -- losses ----------------------------------------------------------------------------------------

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

template <class T>
inline void count_up(Index n, T start, T step, T* y) {
  for (Index i = 0; i < n; ++i) y[i] = start + T(i) * step;
}

// -- tables ----------------------------------------------------------------------------------------

inline void embedding(Index count, Index width, const float* table, const int64_t* rows, float* y) {
  for (Index i = 0; i < count; ++i)
    for (Index k = 0; k < width; ++k) y[i * width + k] = table[rows[i] * width + k];
}

inline void embedding_backward(Index count, Index width, Index size, int64_t padding,
                               const float* grad, const int64_t* rows, float* grad_table) {
  for (Index i = 0; i < size * width; ++i) grad_table[i] = 0.0f;
  for (Index i = 0; i < count; ++i) {
    if (rows[i] == padding) continue;
    float* to = grad_table + rows[i] * width;
    const float* from = grad + i * width;
#pragma GCC ivdep
    for (Index k = 0; k < width; ++k) to[k] += from[k];
  }
}

}  // namespace abele
