// Batch normalisation and activation in two passes over memory each way.
//
// A row holds the channels of one pixel. Rows are taken in groups of a few dozen floats, a multiple
// of both the channels and a register, so that every channel count fills its registers. Sums are
// kept for parts of fixed size and added in their order: threads do not change the result.

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

#include "channel_vectors.h"
#include "half.h"

namespace abele {
namespace {

constexpr Index LANES = channels_last::WIDEST;
using Lanes = channels_last::Vec<channels_last::WIDEST>;

constexpr Index FILLED = 16, LEAST_GROUP = 64;
constexpr Index BLOCK = 64;       // groups whose sums are kept in float
constexpr Index MOST_PARTS = 64;  // that threads share; more only cost sums
// y recovers the normalised x to this many times the precision of y.
constexpr float MOST_LOST = 64.0f, LEAST_WEIGHT = 1e-12f;
// The same where y has 16 bits, of which subnormal halves have few.
constexpr float MOST_LOST_OF_16 = 2.0f, LEAST_RESULT_OF_16 = 1e-3f;

struct Layout {
  Index channels, group, groups, rest, blocks, parts, blocks_per_part;
  explicit Layout(const AbeleNorm& norm)
      : channels(norm.channels), group(std::lcm(norm.channels, FILLED)) {
    group *= (LEAST_GROUP + group - 1) / group;
    const Index floats = norm.rows * channels;
    groups = floats / group, rest = floats % group;
    blocks = std::max<Index>(1, ceil_div(groups, BLOCK));
    blocks_per_part = ceil_div(blocks, MOST_PARTS);
    parts = ceil_div(blocks, blocks_per_part);
  }
  // Calls body(first group, end) for each block of a part.
  template <class Body>
  void each_block(Index part, Body body) const {
    const Index end = std::min(blocks, (part + 1) * blocks_per_part);
    for (Index block = part * blocks_per_part; block < end; ++block)
      body(block * BLOCK, std::min(groups, (block + 1) * BLOCK));
  }
  bool has_rest(Index part) const { return rest > 0 && part == parts - 1; }
};

// Passes are written once for a register and for a single float: at(from) is either. Images are float or
// bfloat16, of which float is computed.
template <class T>
inline T at(const float* from) {
  if constexpr (std::is_same_v<T, float>)
    return *from;
  else
    return channels_last::load<LANES>(from);
}
template <class T>
inline void put(float* to, T value) {
  if constexpr (std::is_same_v<T, float>)
    *to = value;
  else
    channels_last::store<LANES>(to, value);
}

template <class T>
inline T at(const Bfloat* from) {
  if constexpr (std::is_same_v<T, float>)
    return *from;
  else
    return load_bfloats<Lanes>(from);
}
template <class T>
inline void put(Bfloat* to, T value) {
  if constexpr (std::is_same_v<T, float>)
    *to = value;
  else
    store_bfloats<Lanes>(to, value);
}

// Calls body(a number N, lane) for each N registers of a group. Four are the whole of most groups,
// so that memory is read in its order.
template <class Body>
inline void each_lane(Index group, Body body) {
  Index lane = 0;
  for (; lane + 4 * LANES <= group; lane += 4 * LANES)
    body(std::integral_constant<int, 4>(), lane);
  for (; lane + 2 * LANES <= group; lane += 2 * LANES)
    body(std::integral_constant<int, 2>(), lane);
  for (; lane < group; lane += LANES) body(std::integral_constant<int, 1>(), lane);
}

// What make(zero, lane) gives for N registers that follow each other.
template <class Make>
using Made = decltype(std::declval<Make>()(Lanes{}, Index{}));
template <class Make, int... N>
inline std::array<Made<Make>, sizeof...(N)> several(Make make, Index lane,
                                                    std::integer_sequence<int, N...>) {
  return {make(Lanes{}, lane + N * LANES)...};
}

// Values per channel, repeated along a group.
template <class Number>
const float* repeated(const Layout& layout, const Number* per_channel, Scratch& scratch) {
  float* values = scratch.take<float>(layout.group);
  for (Index i = 0; i < layout.group; ++i)
    values[i] = static_cast<float>(per_channel[i % layout.channels]);
  return values;
}

// make(zero, lane) gives what adds the element at a position to two sums, for a lane of the group;
// here for N registers of each group of a block.
template <int N, class Make>
inline void add_block(const Layout& layout, Index first, Index end, Index lane, double* wide,
                      Make make) {
  const auto each = several(make, lane, std::make_integer_sequence<int, N>());
  Lanes a[N] = {}, b[N] = {};
  for (Index g = first; g < end; ++g)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) each[n](g * layout.group + lane + n * LANES, a[n], b[n]);
  for (int n = 0; n < N; ++n)
    for (Index v = 0; v < LANES; ++v) {
      wide[lane + n * LANES + v] += a[n][v];
      wide[layout.group + lane + n * LANES + v] += b[n][v];
    }
}

// Two sums per channel over all rows.
template <class Make>
const double* two_sums(const Layout& layout, int threads, Scratch& scratch, Make make) {
  const Index channels = layout.channels, group = layout.group;
  double* sums = scratch.zeros<double>(2 * channels);
  double* partial = scratch.zeros<double>(layout.parts * 2 * channels);
  double* lanes = scratch.take<double>(threads * 2 * group);
  on_threads(threads, [&](int thread, int size) {
    double* wide = lanes + thread * 2 * group;
    const Part own = part(layout.parts, size, thread);
    for (Index at = own.begin; at < own.begin + own.size; ++at) {
      double* mine = partial + at * 2 * channels;
      std::fill(wide, wide + 2 * group, 0.0);
      layout.each_block(at, [&](Index first, Index end) {
        each_lane(group, [&](auto n, Index lane) {
          add_block<n()>(layout, first, end, lane, wide, make);
        });
      });
      if (layout.has_rest(at))
        for (Index i = 0; i < layout.rest; ++i) {
          float a = 0.0f, b = 0.0f;
          make(0.0f, i)(layout.groups * group + i, a, b);
          wide[i] += a, wide[group + i] += b;
        }
      for (Index r = 0; r < group; r += channels)
        for (Index c = 0; c < channels; ++c) {
          mine[c] += wide[r + c];
          mine[channels + c] += wide[group + r + c];
        }
    }
  });
  for (Index part = 0; part < layout.parts; ++part)
    for (Index i = 0; i < 2 * channels; ++i) sums[i] += partial[part * 2 * channels + i];
  return sums;
}

// make(zero, lane) gives what is done with the element at a position.
template <class Make>
void each_element(const Layout& layout, int threads, Make make) {
  for_each(layout.parts, threads, [&](Index part) {
    layout.each_block(part, [&](Index first, Index end) {
      each_lane(layout.group, [&](auto count, Index lane) {
        constexpr int N = count();
        const auto each = several(make, lane, std::make_integer_sequence<int, N>());
        for (Index g = first; g < end; ++g)
          for (int n = 0; n < N; ++n) each[n](g * layout.group + lane + n * LANES);
      });
    });
    if (layout.has_rest(part))
      for (Index i = 0; i < layout.rest; ++i) make(0.0f, i)(layout.groups * layout.group + i);
  });
}

// `added`, unless null, is added before the activation.
template <class Image>
void scale_shift(const Layout& layout, const Image* x, const float* centre, const float* scale,
                 const float* shift, const Image* added, float slope, Image* y, int threads,
                 Scratch& scratch) {
  const float* centres = repeated(layout, centre, scratch);
  const float* scales = repeated(layout, scale, scratch);
  const float* shifts = repeated(layout, shift, scratch);
  each_element(layout, threads, [=](auto zero, Index lane) {
    using T = decltype(zero);
    const T c = at<T>(centres + lane), a = at<T>(scales + lane), b = at<T>(shifts + lane);
    return [=](Index i) {
      T z = (at<T>(x + i) - c) * a + b;
      if (added != nullptr) z += at<T>(added + i);
      put<T>(y + i, z > 0.0f ? z : z * slope);
    };
  });
}

// What backward needs of one element: its masked gradient and its normalised input.
template <class T>
struct Element {
  T grad, normalised;
};

// Per channel, what brings both back from `kept`, which is y or x.
template <class T, bool FROM_Y>
struct Recover {
  T add, multiply, weight, bias;
  float slope, inverse_slope;
  Element<T> operator()(T grad, T kept) const {
    if (FROM_Y) {
      const T z = kept > 0.0f ? kept : kept * inverse_slope;
      return {kept > 0.0f ? grad : grad * slope, (z - add) * multiply};
    }
    const T normalised = (kept - add) * multiply, before = normalised * weight + bias;
    return {before > 0.0f ? grad : grad * slope, normalised};
  }
};

// The gradients of the parameters, and per element of a group what the gradient of x needs.
struct Means {
  const float *scale, *grad, *both;
};
Means means_of(const AbeleNorm& norm, const Layout& layout, const double* sums,
               const float* weight, const float* inverse_std, float* grad_weight,
               float* grad_bias, Scratch& scratch) {
  const Index channels = norm.channels;
  float *scale = scratch.take<float>(channels), *mean_grad = scratch.take<float>(channels);
  float* mean_both = scratch.take<float>(channels);
  for (Index c = 0; c < channels; ++c) {
    grad_bias[c] = static_cast<float>(sums[c]);
    grad_weight[c] = static_cast<float>(sums[channels + c]);
    scale[c] = weight[c] * inverse_std[c];
    mean_grad[c] = static_cast<float>(sums[c] / norm.rows);
    mean_both[c] = static_cast<float>(sums[channels + c] / norm.rows);
  }
  return {repeated(layout, scale, scratch), repeated(layout, mean_grad, scratch),
          repeated(layout, mean_both, scratch)};
}

template <bool FROM_Y, class Image>
void backward(const AbeleNorm& norm, const Image* grad, const Image* kept, const float* weight,
              const float* bias, const float* statistics, Image* grad_x, float* grad_weight,
              float* grad_bias, int threads, Scratch& scratch) {
  const Layout layout(norm);
  const Index channels = norm.channels;
  const float *mean = statistics, *inverse_std = statistics + channels;
  float* inverse = scratch.take<float>(channels);
  for (Index c = 0; c < channels; ++c) inverse[c] = 1.0f / weight[c];
  const float* p = repeated(layout, FROM_Y ? bias : mean, scratch);
  const float* q = repeated(layout, FROM_Y ? inverse : inverse_std, scratch);
  const float *w = repeated(layout, weight, scratch), *v = repeated(layout, bias, scratch);
  const float slope = static_cast<float>(norm.slope);
  const auto recover = [=](auto zero, Index lane) {
    using T = decltype(zero);
    return Recover<T, FROM_Y>{at<T>(p + lane), at<T>(q + lane), at<T>(w + lane),
                              at<T>(v + lane), slope,           1.0f / slope};
  };
  const double* sums = two_sums(layout, threads, scratch, [=](auto zero, Index lane) {
    using T = decltype(zero);
    const auto of = recover(zero, lane);
    return [=](Index i, T& a, T& b) {
      const Element<T> e = of(at<T>(grad + i), at<T>(kept + i));
      a += e.grad;
      b += e.grad * e.normalised;
    };
  });
  const Means means =
      means_of(norm, layout, sums, weight, inverse_std, grad_weight, grad_bias, scratch);
  each_element(layout, threads, [=](auto zero, Index lane) {
    using T = decltype(zero);
    const auto of = recover(zero, lane);
    const T s = at<T>(means.scale + lane), m = at<T>(means.grad + lane);
    const T n = at<T>(means.both + lane);
    return [=](Index i) {
      const Element<T> e = of(at<T>(grad + i), at<T>(kept + i));
      put<T>(grad_x + i, s * (e.grad - m - e.normalised * n));
    };
  });
}

// The gradient of a sum, through its activation: `masked` is that of both summands, of which one
// was normalised.
template <class Image>
void backward_of_sum(const AbeleNorm& norm, const Image* grad, const Image* more, const Image* y,
                     const Image* x, const float* weight, const float* statistics, Image* masked,
                     Image* grad_x, float* grad_weight, float* grad_bias, int threads,
                     Scratch& scratch) {
  const Layout layout(norm);
  const float* inverse_std = statistics + norm.channels;
  const float* p = repeated(layout, statistics, scratch);
  const float* q = repeated(layout, inverse_std, scratch);
  const float slope = static_cast<float>(norm.slope);
  const double* sums = two_sums(layout, threads, scratch, [=](auto zero, Index lane) {
    using T = decltype(zero);
    const T mean = at<T>(p + lane), multiply = at<T>(q + lane);
    return [=](Index i, T& a, T& b) {
      T g = at<T>(grad + i);
      if (more != nullptr) g += at<T>(more + i);
      g = at<T>(y + i) > 0.0f ? g : g * slope;
      put<T>(masked + i, g);
      a += g;
      b += g * ((at<T>(x + i) - mean) * multiply);
    };
  });
  const Means means =
      means_of(norm, layout, sums, weight, inverse_std, grad_weight, grad_bias, scratch);
  each_element(layout, threads, [=](auto zero, Index lane) {
    using T = decltype(zero);
    const T mean = at<T>(p + lane), multiply = at<T>(q + lane);
    const T s = at<T>(means.scale + lane), m = at<T>(means.grad + lane);
    const T n = at<T>(means.both + lane);
    return [=](Index i) {
      const T normalised = (at<T>(x + i) - mean) * multiply;
      put<T>(grad_x + i, s * (at<T>(masked + i) - m - normalised * n));
    };
  });
}

// Whether dividing by the weight loses little: then y alone brings the normalised x back.
bool recoverable(const AbeleNorm& norm, const float* weight, const float* bias) {
  if (!(norm.slope > 0)) return false;
  const float most = norm.in_16_bits ? MOST_LOST_OF_16 : MOST_LOST;
  const float smallest =
      norm.in_16_bits ? LEAST_RESULT_OF_16 / static_cast<float>(norm.slope) : LEAST_WEIGHT;
  for (Index c = 0; c < norm.channels; ++c) {
    const float least = std::max(smallest, std::fabs(bias[c]) / most);
    if (!(std::fabs(weight[c]) >= least)) return false;
  }
  return true;
}

template <class Image>
void statistics_of(const AbeleNorm& norm, const Image* x, bool from_y, const float* mean,
                   const float* var, float* statistics, float* new_mean, float* new_var,
                   int threads, Scratch& scratch) {
  const Layout layout(norm);
  const Index channels = norm.channels;
  // Sums are of differences to the first pixel: a large mean would swallow the variance.
  const float* shift = repeated(layout, x, scratch);
  const double* sums = two_sums(layout, threads, scratch, [=](auto zero, Index lane) {
    using T = decltype(zero);
    const T first = at<T>(shift + lane);
    return [=](Index i, T& a, T& b) {
      const T d = at<T>(x + i) - first;
      a += d;
      b += d * d;
    };
  });
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

template <class Number, class Pointer>
using Like = std::conditional_t<std::is_same_v<Pointer, const void*>, const Number*, Number*>;

// Calls body(scratch, images...) with pointers of the type of a norm's images.
template <class Body, class... Images>
int of_type(const AbeleNorm& norm, Body body, Images... images) {
  return guarded([&](Scratch& scratch) {
    if (norm.type == ABELE_BFLOAT16)
      body(scratch, static_cast<Like<Bfloat, Images>>(images)...);
    else
      body(scratch, static_cast<Like<float, Images>>(images)...);
  });
}

}  // namespace
}  // namespace abele

using namespace abele;

int abele_norm_statistics(const AbeleNorm* norm, const void* x, const float* weight,
                          const float* bias, const float* mean, const float* var,
                          float* statistics, float* new_mean, float* new_var, int32_t* from_y,
                          int threads) {
  *from_y = recoverable(*norm, weight, bias);
  return of_type(*norm, [&](Scratch& scratch, auto* x) {
    statistics_of(*norm, x, *from_y, mean, var, statistics, new_mean, new_var, threads, scratch);
  }, x);
}

int abele_norm_apply(const AbeleNorm* norm, const void* x, const float* weight, const float* bias,
                     const float* statistics, const void* added, void* y, int threads) {
  return of_type(*norm, [&](Scratch& scratch, auto* x, auto* added, auto* y) {
    float* scale = scratch.take<float>(norm->channels);
    for (Index c = 0; c < norm->channels; ++c)
      scale[c] = weight[c] * statistics[norm->channels + c];
    // The mean is taken away first: a large one would leave few digits of the rest.
    scale_shift(Layout(*norm), x, statistics, scale, bias, added,
                static_cast<float>(norm->slope), y, threads, scratch);
  }, x, added, y);
}

int abele_scale_shift(const AbeleNorm* norm, const void* x, const float* scale,
                      const float* shift, void* y, int threads) {
  return of_type(*norm, [&](Scratch& scratch, auto* x, auto* y) {
    const float* zeros = scratch.zeros<float>(norm->channels);
    scale_shift(Layout(*norm), x, zeros, scale, shift, decltype(x)(nullptr),
                static_cast<float>(norm->slope), y, threads, scratch);
  }, x, y);
}

int abele_norm_backward(const AbeleNorm* norm, const void* grad, const void* kept,
                        const float* weight, const float* bias, const float* statistics,
                        void* grad_x, float* grad_weight, float* grad_bias, int threads) {
  return of_type(*norm, [&](Scratch& scratch, auto* grad, auto* kept, auto* grad_x) {
    using Image = std::remove_pointer_t<decltype(grad_x)>;
    const bool from_y = statistics[2 * norm->channels] != 0.0f;
    const auto run = from_y ? backward<true, Image> : backward<false, Image>;
    run(*norm, grad, kept, weight, bias, statistics, grad_x, grad_weight, grad_bias, threads,
        scratch);
  }, grad, kept, grad_x);
}

int abele_norm_sum_backward(const AbeleNorm* norm, const void* grad, const void* more,
                            const void* y, const void* x, const float* weight,
                            const float* statistics, void* masked, void* grad_x,
                            float* grad_weight, float* grad_bias, int threads) {
  const auto run = [&](Scratch& scratch, auto* grad, auto* more, auto* y, auto* x, auto* masked,
                       auto* grad_x) {
    backward_of_sum(*norm, grad, more, y, x, weight, statistics, masked, grad_x, grad_weight,
                    grad_bias, threads, scratch);
  };
  return of_type(*norm, run, grad, more, y, x, masked, grad_x);
}
