// Max pooling of channels-last images: eight channels of a window at a time.
//
// A place takes one byte where the library's index takes eight, and the way back writes each pixel
// once instead of clearing an image and scattering into it.
#include "image_pool.h"

#include <cstring>

namespace {

using Index = int64_t;
constexpr Index WIDTH = 8;
typedef float Values __attribute__((vector_size(WIDTH * sizeof(float)), aligned(4), may_alias));
typedef int32_t Places __attribute__((vector_size(WIDTH * sizeof(int32_t))));
typedef uint8_t Bytes __attribute__((vector_size(WIDTH), aligned(1), may_alias));

// Where the four pixels of a window begin, in scan order.
struct Window {
  Index at[4];
  Window(Index first, Index channels, Index row)
      : at{first, first + channels, first + row, first + row + channels} {}
};

void eight(const float* x, const Window& window, float* y, uint8_t* places) {
  Values best = *reinterpret_cast<const Values*>(x + window.at[0]);
  Places place = {};
  for (int k = 1; k < 4; ++k) {
    const Values next = *reinterpret_cast<const Values*>(x + window.at[k]);
    const Places taken = (next > best) | (next != next);
    best = taken ? next : best;
    place = taken ? place * 0 + k : place;
  }
  *reinterpret_cast<Values*>(y) = best;
  if (places != nullptr) {
    const Bytes bytes = __builtin_convertvector(place, Bytes);
    std::memcpy(places, &bytes, sizeof bytes);
  }
}

void one(const float* x, const Window& window, float* y, uint8_t* places) {
  float best = x[window.at[0]];
  uint8_t place = 0;
  for (int k = 1; k < 4; ++k) {
    const float next = x[window.at[k]];
    if (!(next > best || next != next)) continue;
    best = next;
    place = static_cast<uint8_t>(k);
  }
  *y = best;
  if (places != nullptr) *places = place;
}

void eight_back(const float* grad, const uint8_t* places, const Window& window, float* x) {
  const Values value = *reinterpret_cast<const Values*>(grad), zero = {};
  Bytes bytes;
  std::memcpy(&bytes, places, sizeof bytes);
  const Places place = __builtin_convertvector(bytes, Places);
  for (int k = 0; k < 4; ++k)
    *reinterpret_cast<Values*>(x + window.at[k]) = place == k ? value : zero;
}

void one_back(const float* grad, const uint8_t* place, const Window& window, float* x) {
  for (int k = 0; k < 4; ++k) x[window.at[k]] = *place == k ? *grad : 0.0f;
}

// Calls eight(window, at) or one(window, at) for all channels of all windows of all rows.
template <class Eight, class One>
void each_window(const AbeleImagePool& pool, int threads, Eight eight, One one) {
  const Index row = pool.width * pool.channels, rows = pool.images * pool.height / 2;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < pool.width / 2; ++i) {
      const Index from = 2 * r * row + 2 * i * pool.channels;
      const Index to = (r * (pool.width / 2) + i) * pool.channels;
      Index c = 0;
      for (; c + WIDTH <= pool.channels; c += WIDTH)
        eight(Window(from + c, pool.channels, row), to + c);
      for (; c < pool.channels; ++c) one(Window(from + c, pool.channels, row), to + c);
    }
}

}  // namespace

void abele_image_pool(const AbeleImagePool* pool, const float* x, float* y, uint8_t* places,
                      int threads) {
  const auto at = [places](Index to) { return places == nullptr ? nullptr : places + to; };
  each_window(
      *pool, threads, [=](const Window& window, Index to) { eight(x, window, y + to, at(to)); },
      [=](const Window& window, Index to) { one(x, window, y + to, at(to)); });
}

void abele_image_pool_backward(const AbeleImagePool* pool, const float* grad_y,
                               const uint8_t* places, float* grad_x, int threads) {
  each_window(
      *pool, threads,
      [=](const Window& window, Index to) { eight_back(grad_y + to, places + to, window, grad_x); },
      [=](const Window& window, Index to) { one_back(grad_y + to, places + to, window, grad_x); });
}
