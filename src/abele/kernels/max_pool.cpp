// Max pooling; windows of 2x2, by far the most common, eight at a time.
#include "max_pool.h"

#include <algorithm>

#include "lanes.h"

namespace abele {
namespace {

constexpr Index WIDTH = 8;
using Values = float __attribute__((vector_size(WIDTH * sizeof(float))));
using Places = int32_t __attribute__((vector_size(WIDTH * sizeof(int32_t))));

// Columns 0, 2, 4, ... and 1, 3, 5, ... of sixteen.
struct Pairs {
  Values even, odd;
  explicit Pairs(const float* row) {
    Values low, high;
    std::memcpy(&low, row, sizeof low);
    std::memcpy(&high, row + WIDTH, sizeof high);
    even = ABELE_SHUFFLE(Places, low, high, 0, 2, 4, 6, 8, 10, 12, 14);
    odd = ABELE_SHUFFLE(Places, low, high, 1, 3, 5, 7, 9, 11, 13, 15);
  }
};

// `later` follows `best` in scan order.
inline void take(Values later, int32_t place, Values& best, Places& places) {
  const Places taken = (later > best) | (later != later);
  best = taken ? later : best;
  places = taken ? places * 0 + place : places;
}

void eight_windows(const AbelePool& p, const float* x, int32_t place, float* values,
                   Index* indices) {
  const Pairs top(x), bottom(x + p.in_width);
  const int32_t down = static_cast<int32_t>(p.in_width);
  Values best = top.even;
  Places offsets = {};
  take(top.odd, 1, best, offsets);
  take(bottom.even, down, best, offsets);
  take(bottom.odd, down + 1, best, offsets);
  const Places columns = {0, 2, 4, 6, 8, 10, 12, 14};
  offsets += columns + place;
  std::memcpy(values, &best, sizeof best);
  for (Index i = 0; i < WIDTH; ++i) indices[i] = offsets[i];
}

void window(const AbelePool& p, const float* x, Index place, float* value, Index* index) {
  Index best = 0;
  for (Index kh = 0; kh < p.kernel_height; ++kh)
    for (Index kw = 0; kw < p.kernel_width; ++kw) {
      const Index at = kh * p.in_width + kw;
      if (x[at] > x[best] || x[at] != x[at]) best = at;
    }
  *value = x[best];
  *index = place + best;
}

void pool_plane(const AbelePool& p, const float* x, float* values, Index* indices) {
  const bool two = p.kernel_height == 2 && p.kernel_width == 2 && p.stride_width == 2;
  for (Index y = 0; y < p.out_height; ++y, values += p.out_width, indices += p.out_width) {
    const Index row = y * p.stride_height * p.in_width;
    // The last eight windows of a row may overlap those before: doing some twice costs less than
    // doing them one by one.
    for (Index i = 0; two && p.out_width >= WIDTH && i < p.out_width; i += WIDTH) {
      const Index first = std::min(i, p.out_width - WIDTH), place = row + 2 * first;
      eight_windows(p, x + place, static_cast<int32_t>(place), values + first, indices + first);
    }
    for (Index i = 0; !(two && p.out_width >= WIDTH) && i < p.out_width; ++i) {
      const Index place = row + i * p.stride_width;
      window(p, x + place, place, values + i, indices + i);
    }
  }
}

}  // namespace
}  // namespace abele

void abele_max_pool(const AbelePool* pool, const float* x, float* values, int64_t* indices,
                    int threads) {
  const int64_t in = pool->in_height * pool->in_width, out = pool->out_height * pool->out_width;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t plane = 0; plane < pool->planes; ++plane)
    abele::pool_plane(*pool, x + plane * in, values + plane * out, indices + plane * out);
}
