// Bilinear doubling of channels-last images, and its gradient.
//
// Along one dimension, then along the other: the rows that are blended stay in the first cache. The
// gradient is gathered, each pixel written once, where torch scatters into a cleared image.
#include <algorithm>

#include "channel_vectors.h"

namespace abele {
namespace {

using channels_last::load;
using channels_last::store;
using channels_last::Vec;

// The two pixels of a line that one of the doubled line lies between, and their weights, as torch
// has them: an infinite neighbour of weight zero counts.
struct Between {
  Index first, second;
  float a, b;
};
Between between(Index i, Index size) {
  const Index first = i == 0 ? 0 : (i - 1) / 2;
  const float b = i == 0 ? 0.0f : i % 2 ? 0.25f : 0.75f;
  return {first, std::min(first + 1, size - 1), 1 - b, b};
}

// The pixels of the doubled line that lie beside a pixel, with its weight in them.
struct Around {
  int count = 0;
  Index at[5];
  float weight[5];
  void add(Index pixel, float by) {
    at[count] = pixel;
    weight[count++] = by;
  }
};
Around around(Index i, Index size) {
  Around result;
  for (Index at = i == 1 ? 0 : std::max<Index>(2 * i - 1, 0);
       at < std::min(2 * size, 2 * i + 3); ++at) {
    const auto [first, second, a, b] = between(at, size);
    if (first == i) result.add(at, a);
    if (second == i) result.add(at, b);
  }
  return result;
}

// to = a x + b y
template <int V>
inline void blend(Index n, float a, const float* x, float b, const float* y, float* to) {
  for (Index i = 0; i < n; i += V) store<V>(to + i, a * load<V>(x + i) + b * load<V>(y + i));
}

// The outermost two on both sides have the smaller weight.
template <int V>
inline void gather(Index n, const float* a, const float* b, const float* c, const float* d,
                   float* to) {
  for (Index i = 0; i < n; i += V)
    store<V>(to + i, 0.25f * (load<V>(a + i) + load<V>(d + i)) +
                         0.75f * (load<V>(b + i) + load<V>(c + i)));
}

// The same anywhere in a line whose pixels have n floats and are `step` apart.
template <int V>
inline void gather_around(Index n, const Around& from, const float* line, Index step, float* to) {
  for (Index i = 0; i < n; i += V) {
    Vec<V> sum = {};
    for (int k = 0; k < from.count; ++k)
      sum += from.weight[k] * load<V>(line + from.at[k] * step + i);
    store<V>(to + i, sum);
  }
}
// Whether a pixel's neighbours are those of most.
bool is_inside(Index i, Index size) { return i > 1 && i + 1 < size; }

template <int V>
void double_row(const AbeleUpsample& p, const float* image, Index row, float* work, float* y) {
  const Index n = p.channels, line = p.width * n;
  const auto [first, second, a, b] = between(row, p.height);
  blend<V>(line, a, image + first * line, b, image + second * line, work);
  for (Index i = 0; i < 2 * p.width; ++i) {
    const auto [left, right, l, r] = between(i, p.width);
    blend<V>(n, l, work + left * n, r, work + right * n, y + i * n);
  }
}

template <int V>
void halve_row(const AbeleUpsample& p, const float* grad, Index row, float* work, float* x) {
  const Index n = p.channels, line = 2 * p.width * n;
  if (is_inside(row, p.height)) {
    const float* g = grad + (2 * row - 1) * line;
    gather<V>(line, g, g + line, g + 2 * line, g + 3 * line, work);
  } else {
    gather_around<V>(line, around(row, p.height), grad, line, work);
  }
  for (Index i = 0; i < p.width; ++i) {
    const float* g = work + (2 * i - 1) * n;
    if (is_inside(i, p.width))
      gather<V>(n, g, g + n, g + 2 * n, g + 3 * n, x + i * n);
    else
      gather_around<V>(n, around(i, p.width), work, n, x + i * n);
  }
}

using Row = void (*)(const AbeleUpsample&, const float*, Index, float*, float*);

// Rows of all images by threads: `from` and `to` are floats of an image, `rows` those that are written.
int each_row(const AbeleUpsample& p, Index from, Index rows, Index row_size, Row run, const float* x,
             float* y, int threads) {
  return guarded([&](Scratch& memory) {
    const Index room = 2 * p.width * p.channels;
    float* work = memory.take<float>(room * threads);
    for_each(threads, threads, [&](Index t) {
      const auto [begin, count] = part(p.images * rows, threads, t);
      for (Index i = begin; i < begin + count; ++i)
        run(p, x + i / rows * from, i % rows, work + t * room, y + i * row_size);
    });
  });
}

// Code for the widest registers that channels fill.
template <template <int> class Code>
Row of_channels(Index channels) {
  if (channels % channels_last::WIDEST == 0) return Code<channels_last::WIDEST>::run;
  if (channels % 8 == 0) return Code<8>::run;
  return channels % 4 == 0 ? Code<4>::run : Code<1>::run;
}
template <int V>
struct Doubling {
  static constexpr Row run = double_row<V>;
};
template <int V>
struct Halving {
  static constexpr Row run = halve_row<V>;
};

}  // namespace
}  // namespace abele

using namespace abele;

int abele_upsample(const AbeleUpsample* upsample, const float* x, float* y, int threads) {
  const AbeleUpsample& p = *upsample;
  const Index line = p.width * p.channels;
  const Row run = of_channels<Doubling>(p.channels);
  return each_row(p, p.height * line, 2 * p.height, 2 * line, run, x, y, threads);
}

int abele_upsample_backward(const AbeleUpsample* upsample, const float* grad_y, float* grad_x,
                            int threads) {
  const AbeleUpsample& p = *upsample;
  const Index line = p.width * p.channels;
  const Row run = of_channels<Halving>(p.channels);
  return each_row(p, 4 * p.height * line, p.height, line, run, grad_y, grad_x, threads);
}
