// Max pooling over windows of 2x2, eight at a time: of eight channels, or of eight columns.
//
// Images with their channels apart are so many images of one channel. A place takes one byte where
// torch's index takes eight, and the way back writes each pixel once instead of clearing an image and
// scattering into it.
#include <algorithm>
#include <cstring>

#include "calls.h"
#include "lanes.h"

namespace abele {
namespace {

constexpr Index WIDTH = 8;
using Values = float __attribute__((vector_size(WIDTH * sizeof(float))));
using Places = int32_t __attribute__((vector_size(WIDTH * sizeof(int32_t))));
using Bytes = uint8_t __attribute__((vector_size(WIDTH)));

template <class T>
void store(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// The larger images.
struct Images {
  Index count, channels, height, width;
  explicit Images(const AbelePool& pool)
      : count(pool.channels_last ? pool.images : pool.images * pool.channels),
        channels(pool.channels_last ? pool.channels : 1),
        height(pool.height),
        width(pool.width) {}
  Index row() const { return width * channels; }
  Index columns() const { return width / 2; }  // of windows
  Index rows() const { return height / 2; }
};

// A row of windows: its number in its image, and where it begins in the images and the results.
struct Row {
  Index number, large, small;
};

template <class Body>
void each_row(const Images& images, int threads, Body body) {
  const Index windows = images.columns() * images.channels;
  for_each(threads, threads, [&](Index t) {
    auto [done, left] = part(images.count * images.rows(), threads, t);
    while (left > 0) {
      const Index image = done / images.rows(), first = done % images.rows();
      const Index count = std::min(left, images.rows() - first);
      const Index large = (image * images.height + 2 * first) * images.row();
      for (Index i = 0; i < count; ++i)
        body(Row{first + i, large + 2 * i * images.row(), (done + i) * windows});
      done += count, left -= count;
    }
  });
}

// Even and odd columns of sixteen.
struct Pairs {
  Values even, odd;
  static Pairs from(const float* row) {
    const Values low = load<Values>(row), high = load<Values>(row + WIDTH);
    return {ABELE_SHUFFLE(Places, low, high, 0, 2, 4, 6, 8, 10, 12, 14),
            ABELE_SHUFFLE(Places, low, high, 1, 3, 5, 7, 9, 11, 13, 15)};
  }
  void to(float* row) const {
    store(row, ABELE_SHUFFLE(Places, even, odd, 0, 8, 1, 9, 2, 10, 3, 11));
    store(row + WIDTH, ABELE_SHUFFLE(Places, even, odd, 4, 12, 5, 13, 6, 14, 7, 15));
  }
};

// The largest of values that come in scan order, and its place.
struct Best {
  Values value;
  Places place = {};
  void take(Values next, int32_t of_next) {
    const Places taken = (next > value) | (next != next);
    value = taken ? next : value;
    place = taken ? place * 0 + of_next : place;
  }
};

// Where results go, with the place of each if they are `noted`.
template <bool noted>
struct Results {
  float* y;
  uint8_t* places;

  void write(const Best& best, Index at) const {
    store(y + at, best.value);
    if (noted) store(places + at, __builtin_convertvector(best.place, Bytes));
  }
  void write(float value, int place, Index at) const {
    y[at] = value;
    if (noted) places[at] = static_cast<uint8_t>(place);
  }
};

// One window of one channel; `row` and `next` are the distances to its other pixels.
template <bool noted>
void one(const float* x, Index next, Index row, const Results<noted>& to, Index at) {
  const float values[] = {x[0], x[next], x[row], x[row + next]};
  int best = 0;
  for (int k = 1; k < 4; ++k)
    if (values[k] > values[best] || values[k] != values[k]) best = k;
  to.write(values[best], best, at);
}

template <bool noted>
void eight_columns(const float* x, Index row, const Results<noted>& to, Index at) {
  const Pairs top = Pairs::from(x), bottom = Pairs::from(x + row);
  Best best = {top.even};
  best.take(top.odd, 1);
  best.take(bottom.even, 2);
  best.take(bottom.odd, 3);
  to.write(best, at);
}

template <bool noted>
void eight_channels(const float* x, Index next, Index row, const Results<noted>& to, Index at) {
  Best best = {load<Values>(x)};
  best.take(load<Values>(x + next), 1);
  best.take(load<Values>(x + row), 2);
  best.take(load<Values>(x + row + next), 3);
  to.write(best, at);
}

void one_back(float grad, uint8_t place, Index next, Index row, float* x) {
  x[0] = place == 0 ? grad : 0.0f;
  x[next] = place == 1 ? grad : 0.0f;
  x[row] = place == 2 ? grad : 0.0f;
  x[row + next] = place == 3 ? grad : 0.0f;
}

// The gradients of eight windows' pixels at one place.
struct Back {
  Values grad;
  Places place;
  Back(const float* from, const uint8_t* places)
      : grad(load<Values>(from)), place(__builtin_convertvector(load<Bytes>(places), Places)) {}
  Values at(int32_t k) const { return place == k ? grad : Values{}; }
};

void eight_columns_back(const Back& back, Index row, float* x) {
  Pairs{back.at(0), back.at(1)}.to(x);
  Pairs{back.at(2), back.at(3)}.to(x + row);
}

void eight_channels_back(const Back& back, Index next, Index row, float* x) {
  store(x, back.at(0));
  store(x + next, back.at(1));
  store(x + row, back.at(2));
  store(x + row + next, back.at(3));
}

// Calls eight(x, y) or one(x, y) for the windows of a row, with their places in the images and the
// results.
template <class Eight, class One>
void each_column(const Images& images, const Row& r, Eight eight, One one) {
  const Index columns = images.columns();
  if (columns < WIDTH) {
    for (Index i = 0; i < columns; ++i) one(r.large + 2 * i, r.small + i);
    return;
  }
  // The last eight may overlap those before: doing some twice costs less than one by one.
  for (Index i = 0; i < columns; i += WIDTH) {
    const Index first = std::min(i, columns - WIDTH);
    eight(r.large + 2 * first, r.small + first);
  }
}

// The same for eight channels or one of each window.
template <class Eight, class One>
void each_channel(const Images& images, const Row& r, Eight eight, One one) {
  const Index channels = images.channels;
  for (Index i = 0; i < images.columns(); ++i) {
    const Index from = r.large + 2 * i * channels, to = r.small + i * channels;
    Index c = 0;
    for (; c + WIDTH <= channels; c += WIDTH) eight(from + c, to + c);
    for (; c < channels; ++c) one(from + c, to + c);
  }
}

// Descriptions come by value: what is written could otherwise be a part of them, for all the
// compiler knows, and they would be read again for every window.
template <bool noted>
void pool_columns(const Images images, const Row r, const float* x, const Results<noted> to) {
  const Index row = images.row();
  each_column(
      images, r, [=](Index from, Index at) { eight_columns(x + from, row, to, at); },
      [=](Index from, Index at) { one(x + from, 1, row, to, at); });
}

template <bool noted>
void pool_channels(const Images images, const Row r, const float* x, const Results<noted> to) {
  const Index next = images.channels, row = images.row();
  each_channel(
      images, r, [=](Index from, Index at) { eight_channels(x + from, next, row, to, at); },
      [=](Index from, Index at) { one(x + from, next, row, to, at); });
}

template <bool noted>
void forward(const Images& images, const float* x, float* y, uint8_t* places, int threads) {
  const Results<noted> to = {y, places};
  if (images.channels == 1)
    each_row(images, threads, [=](const Row& r) { pool_columns(images, r, x, to); });
  else
    each_row(images, threads, [=](const Row& r) { pool_channels(images, r, x, to); });
}

// Pixels that belong to no window have no gradient.
void clear_rest(const Images& images, const Row& r, float* x) {
  const Index row = images.row();
  float* from = x + r.large;
  if (images.width % 2 != 0)
    for (float* end : {from + row, from + 2 * row}) std::fill(end - images.channels, end, 0.0f);
  if (images.height % 2 != 0 && r.number == images.rows() - 1)
    std::fill(from + 2 * row, from + 3 * row, 0.0f);
}

void back_columns(const Images images, const Row r, const float* grad, const uint8_t* places,
                  float* x) {
  const Index row = images.row();
  each_column(
      images, r,
      [=](Index to, Index at) { eight_columns_back(Back(grad + at, places + at), row, x + to); },
      [=](Index to, Index at) { one_back(grad[at], places[at], 1, row, x + to); });
  clear_rest(images, r, x);
}

void back_channels(const Images images, const Row r, const float* grad, const uint8_t* places,
                   float* x) {
  const Index next = images.channels, row = images.row();
  each_channel(
      images, r,
      [=](Index to, Index at) {
        eight_channels_back(Back(grad + at, places + at), next, row, x + to);
      },
      [=](Index to, Index at) { one_back(grad[at], places[at], next, row, x + to); });
  clear_rest(images, r, x);
}

}  // namespace
}  // namespace abele

using namespace abele;

int abele_max_pool(const AbelePool* pool, const float* x, float* y, uint8_t* places, int threads) {
  const auto run = places != nullptr ? forward<true> : forward<false>;
  run(Images(*pool), x, y, places, threads);
  return ABELE_OK;
}

int abele_max_pool_backward(const AbelePool* pool, const float* grad_y, const uint8_t* places,
                            float* grad_x, int threads) {
  const Images images(*pool);
  if (images.rows() == 0) std::fill(grad_x, grad_x + images.count * images.row(), 0.0f);
  const auto run = images.channels == 1 ? back_columns : back_channels;
  each_row(images, threads, [=](const Row& r) { run(images, r, grad_y, places, grad_x); });
  return ABELE_OK;
}
