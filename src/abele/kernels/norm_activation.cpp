// Batch normalisation and activation in two passes over memory each way.
//
// A row holds the channels of one pixel. Rows are taken in groups of a few dozen floats, a multiple
// of both the channels and a vector, so that every channel count fills its registers. Sums are kept
// for parts of fixed size and added in their order: threads do not change the result.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "calls.h"

namespace abele {
namespace {

constexpr Index VECTOR = 16, LEAST_GROUP = 64;
constexpr Index BLOCK = 64;        // groups whose sums are kept in float
constexpr Index PART = 16 * BLOCK;  // groups of one part
// y recovers the normalised x to this many times the precision of y.
constexpr float MOST_LOST = 64.0f, LEAST_WEIGHT = 1e-12f;

struct Layout {
  Index channels, group, groups, parts, floats;
  explicit Layout(const AbeleNorm& norm)
      : channels(norm.channels), group(std::lcm(norm.channels, VECTOR)) {
    group *= (LEAST_GROUP + group - 1) / group;
    floats = norm.rows * channels;
    groups = (floats + group - 1) / group;
    parts = std::max<Index>(1, (groups + PART - 1) / PART);
  }
  // Calls body(first float, floats) for each group of a part; the last one may be short.
  template <class Body>
  void each_group(Index first, Index end, Body body) const {
    for (Index g = first; g < end; ++g) body(g * group, std::min(group, floats - g * group));
  }
};

// Values per channel, repeated along a group.
const float* repeated(const Layout& layout, const float* per_channel, Scratch& scratch) {
  float* values = scratch.take<float>(layout.group);
  for (Index i = 0; i < layout.group; ++i) values[i] = per_channel[i % layout.channels];
  return values;
}

// Two sums per channel over all rows; add(first, count, a, b) adds one group to float sums.
template <class Add>
const double* two_sums(const Layout& layout, int threads, Scratch& scratch, Add add) {
  double* sums = scratch.zeros<double>(2 * layout.channels);
  double* partial = scratch.zeros<double>(layout.parts * 2 * layout.channels);
  float* groups = scratch.take<float>(threads * 2 * layout.group);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (Index part = 0; part < layout.parts; ++part) {
    double* mine = partial + part * 2 * layout.channels;
    float* a = groups + omp_get_thread_num() * 2 * layout.group;
    float* b = a + layout.group;
    const Index end = std::min(layout.groups, (part + 1) * PART);
    for (Index block = part * PART; block < end; block += BLOCK) {
      std::fill(a, a + 2 * layout.group, 0.0f);
      layout.each_group(block, std::min(end, block + BLOCK),
                        [&](Index first, Index count) { add(first, count, a, b); });
      for (Index i = 0, c = 0; i < layout.group; ++i, c = c + 1 == layout.channels ? 0 : c + 1) {
        mine[c] += a[i];
        mine[layout.channels + c] += b[i];
      }
    }
  }
  for (Index part = 0; part < layout.parts; ++part)
    for (Index i = 0; i < 2 * layout.channels; ++i)
      sums[i] += partial[part * 2 * layout.channels + i];
  return sums;
}

template <class Body>
void each_part(const Layout& layout, int threads, Body body) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (Index part = 0; part < layout.parts; ++part)
    layout.each_group(part * PART, std::min(layout.groups, (part + 1) * PART), body);
}

void scale_shift(const Layout& layout, const float* x, const float* centre, const float* scale,
                 const float* shift, float slope, float* y, int threads, Scratch& scratch) {
  const float* c = repeated(layout, centre, scratch);
  const float* a = repeated(layout, scale, scratch);
  const float* b = repeated(layout, shift, scratch);
  each_part(layout, threads, [=](Index first, Index count) {
    const float* from = x + first;
    float* to = y + first;
#pragma GCC ivdep
    for (Index i = 0; i < count; ++i) {
      const float z = (from[i] - c[i]) * a[i] + b[i];
      to[i] = z > 0.0f ? z : z * slope;
    }
  });
}

// What backward needs of one element: its masked gradient and its normalised input.
struct Element {
  float grad, normalised;
};

// Recovers both from y or from x. `kept` and `grad` are of one element; the others of its channel.
template <bool FROM_Y>
inline Element recover(float grad, float kept, float add, float multiply, float weight, float bias,
                       float slope, float inverse_slope) {
  if (FROM_Y) {
    const float z = kept * (kept > 0.0f ? 1.0f : inverse_slope);
    const float normalised = (z - add) * multiply;
    return {grad * (kept > 0.0f ? 1.0f : slope), normalised};
  }
  const float normalised = (kept - add) * multiply;
  const float before = normalised * weight + bias;
  return {grad * (before > 0.0f ? 1.0f : slope), normalised};
}

template <bool FROM_Y>
void backward(const AbeleNorm& norm, const float* grad, const float* kept, const float* weight,
              const float* bias, const float* statistics, float* grad_x, float* grad_weight,
              float* grad_bias, int threads, Scratch& scratch) {
  const Layout layout(norm);
  const Index channels = norm.channels;
  const float *mean = statistics, *inverse_std = statistics + channels;
  float* inverse = scratch.take<float>(channels);
  for (Index c = 0; c < channels; ++c) inverse[c] = 1.0f / weight[c];
  const float* p = repeated(layout, FROM_Y ? bias : mean, scratch);
  const float* q = repeated(layout, FROM_Y ? inverse : inverse_std, scratch);
  const float *w = repeated(layout, weight, scratch), *v = repeated(layout, bias, scratch);
  const float slope = static_cast<float>(norm.slope), inverse_slope = 1.0f / slope;
  const auto add = [=](Index first, Index count, float* a, float* b) {
    const float *g = grad + first, *k = kept + first;
#pragma GCC ivdep
    for (Index i = 0; i < count; ++i) {
      const Element e =
          recover<FROM_Y>(g[i], k[i], p[i], q[i], w[i], v[i], slope, inverse_slope);
      a[i] += e.grad;
      b[i] += e.grad * e.normalised;
    }
  };
  const double* sums = two_sums(layout, threads, scratch, add);
  float *scale = scratch.take<float>(channels), *mean_grad = scratch.take<float>(channels);
  float* mean_both = scratch.take<float>(channels);
  for (Index c = 0; c < channels; ++c) {
    grad_bias[c] = static_cast<float>(sums[c]);
    grad_weight[c] = static_cast<float>(sums[channels + c]);
    scale[c] = weight[c] * inverse_std[c];
    mean_grad[c] = static_cast<float>(sums[c] / norm.rows);
    mean_both[c] = static_cast<float>(sums[channels + c] / norm.rows);
  }
  const float* s = repeated(layout, scale, scratch);
  const float *m = repeated(layout, mean_grad, scratch), *n = repeated(layout, mean_both, scratch);
  each_part(layout, threads, [=](Index first, Index count) {
    const float *g = grad + first, *k = kept + first;
    float* to = grad_x + first;
#pragma GCC ivdep
    for (Index i = 0; i < count; ++i) {
      const Element e =
          recover<FROM_Y>(g[i], k[i], p[i], q[i], w[i], v[i], slope, inverse_slope);
      to[i] = s[i] * (e.grad - m[i] - e.normalised * n[i]);
    }
  });
}

// Whether dividing by the weight loses little: then y alone brings the normalised x back.
bool recoverable(const AbeleNorm& norm, const float* weight, const float* bias) {
  if (!(norm.slope > 0)) return false;
  for (Index c = 0; c < norm.channels; ++c) {
    const float least = std::max(LEAST_WEIGHT, std::fabs(bias[c]) / MOST_LOST);
    if (!(std::fabs(weight[c]) >= least)) return false;
  }
  return true;
}

void statistics_of(const AbeleNorm& norm, const float* x, bool from_y, const float* mean,
                   const float* var, float* statistics, float* new_mean, float* new_var,
                   int threads, Scratch& scratch) {
  const Layout layout(norm);
  const Index channels = norm.channels;
  // Sums are of differences to the first pixel: a large mean would swallow the variance.
  const float* shift = repeated(layout, x, scratch);
  const auto add = [=](Index first, Index count, float* a, float* b) {
    const float* from = x + first;
#pragma GCC ivdep
    for (Index i = 0; i < count; ++i) {
      const float d = from[i] - shift[i];
      a[i] += d;
      b[i] += d * d;
    }
  };
  const double* sums = two_sums(layout, threads, scratch, add);
  const double rows = static_cast<double>(norm.rows), keep = 1.0 - norm.momentum;
  for (Index c = 0; c < channels; ++c) {
    const double offset = sums[c] / rows;
    // Rounding may make it slightly negative; NaN stays NaN.
    const double raw = sums[channels + c] / rows - offset * offset;
    const double variance = raw < 0.0 ? 0.0 : raw, average = shift[c] + offset;
    statistics[c] = static_cast<float>(average);
    statistics[channels + c] = static_cast<float>(1.0 / std::sqrt(variance + norm.eps));
    statistics[2 * channels + c] = from_y;
    const double unbiased = variance * (rows / (rows - 1.0));
    new_mean[c] = static_cast<float>(keep * mean[c] + norm.momentum * average);
    new_var[c] = static_cast<float>(keep * var[c] + norm.momentum * unbiased);
  }
}

}  // namespace
}  // namespace abele

using namespace abele;

int abele_norm_statistics(const AbeleNorm* norm, const float* x, const float* weight,
                          const float* bias, const float* mean, const float* var,
                          float* statistics, float* new_mean, float* new_var, int32_t* from_y,
                          int threads) {
  *from_y = recoverable(*norm, weight, bias);
  return guarded([&](Scratch& scratch) {
    statistics_of(*norm, x, *from_y, mean, var, statistics, new_mean, new_var, threads, scratch);
  });
}

int abele_norm_apply(const AbeleNorm* norm, const float* x, const float* weight, const float* bias,
                     const float* statistics, float* y, int threads) {
  return guarded([&](Scratch& scratch) {
    float* scale = scratch.take<float>(norm->channels);
    for (Index c = 0; c < norm->channels; ++c)
      scale[c] = weight[c] * statistics[norm->channels + c];
    // The mean is taken away first: a large one would leave few digits of the rest.
    scale_shift(Layout(*norm), x, statistics, scale, bias, static_cast<float>(norm->slope), y,
                threads, scratch);
  });
}

int abele_scale_shift(const AbeleNorm* norm, const float* x, const float* scale,
                      const float* shift, float* y, int threads) {
  return guarded([&](Scratch& scratch) {
    const float* zeros = scratch.zeros<float>(norm->channels);
    scale_shift(Layout(*norm), x, zeros, scale, shift, static_cast<float>(norm->slope), y, threads,
                scratch);
  });
}

int abele_norm_backward(const AbeleNorm* norm, const float* grad, const float* kept,
                        const float* weight, const float* bias, const float* statistics,
                        float* grad_x, float* grad_weight, float* grad_bias, int threads) {
  return guarded([&](Scratch& scratch) {
    const auto run = statistics[2 * norm->channels] != 0.0f ? backward<true> : backward<false>;
    run(*norm, grad, kept, weight, bias, statistics, grad_x, grad_weight, grad_bias, threads,
        scratch);
  });
}
