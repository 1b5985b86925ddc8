// Max pooling over windows of 2x2 whose pixels are in lanes, and its way back.
//
// A place is where in its window a pixel was the largest, 0 to 3 in scan order, or 4 where it was
// not above zero: if an activation lies between, no gradient passes. Places lie as the pixels do.
#pragma once

#include <type_traits>

#include "images.h"

namespace abele {
inline namespace ABELE_LENGTH {

using LanePlaces = int32_t __attribute__((vector_size(LANES * sizeof(int32_t))));
using LaneBytes = uint8_t __attribute__((vector_size(LANES)));
constexpr int32_t NO_PLACE = 4;
// Those of so many samples lie side by side, whatever is computed at once: threads that have half a
// register each must not write into the same lines of the cache.
constexpr Index PLACED_TOGETHER = 8;

// Where places of some samples lie, `size` of each.
template <class Byte>
struct Places {
  Byte* first;
  Index size;
  // Those from sample n on, and of its i-th place on.
  Places from(Index n, Index i) const {
    if (first == nullptr) return *this;
    const Index groups = n / PLACED_TOGETHER, rest = n % PLACED_TOGETHER;
    return {first + (groups * size + i) * PLACED_TOGETHER + rest, size};
  }
};
constexpr Index PLACE_BYTES = std::min<Index>(LANES, PLACED_TOGETHER);
inline void store_places(const Places<uint8_t>& to, Index i, const LaneBytes& bytes) {
  for (Index s = 0; s < LANES; s += PLACE_BYTES)
    std::memcpy(to.from(s, i).first, reinterpret_cast<const uint8_t*>(&bytes) + s, PLACE_BYTES);
}
inline LanePlaces load_places(const Places<const uint8_t>& from, Index i) {
  // Numbers, each in a register: a processor waits for what it has written in pieces and reads at once.
  using Number = std::conditional_t<PLACE_BYTES == 8, uint64_t, uint32_t>;
  using Numbers = Number __attribute__((vector_size(LANES)));
  Numbers numbers = {};
  for (Index n = 0; n < LANES / PLACE_BYTES; ++n) {
    Number number;
    std::memcpy(&number, from.from(n * PLACE_BYTES, i).first, PLACE_BYTES);
    numbers[n] = number;
  }
  return __builtin_convertvector(reinterpret_cast<LaneBytes>(numbers), LanePlaces);
}

// Pools `count` rows of windows of a plane in its own memory. NaN counts as largest; the first of
// equal values is taken, and the last NaN. `rectified`: what is left goes through a ReLU, which does not
// change what is the largest above zero.
inline void pool_lanes(Vec* plane, Index count, Index width, bool rectified,
                       const Places<uint8_t>& places) {
  const Index columns = width / 2;
  for (Index y = 0; y < count; ++y)
    for (Index x = 0; x < columns; ++x) {
      const Vec* from = plane + 2 * y * width + 2 * x;
      const Vec window[] = {from[0], from[1], from[width], from[width + 1]};
      Vec best = window[0];
      LanePlaces place = {};
#pragma GCC unroll 4
      for (int k = 1; k < 4; ++k) {
        const LanePlaces taken = (window[k] > best) | (window[k] != window[k]);
        best = taken ? window[k] : best;
        place = taken ? place * 0 + k : place;
      }
      const Index to = y * columns + x;
      plane[to] = rectified ? activated(best, 0.0f) : best;
      if (places.first == nullptr) continue;
      if (rectified) place = best <= 0.0f ? place * 0 + NO_PLACE : place;
      store_places(places, to, __builtin_convertvector(place, LaneBytes));
    }
}

// Zeros around what windows of 2x2 write: rows y0 to y1 of a channel.
inline void clear_borders(const Image& image, Vec* plane, Index y0, Index y1) {
  const Index covered = image.width / 2 * 2, last = image.height / 2 * 2;
  for (Index y = y0; y < y1; ++y) {
    Vec *row = plane + y * image.row(), *pixels = row + image.left;
    std::fill(row, y < last ? pixels : pixels + covered, Vec{});
    std::fill(pixels + covered, row + image.row(), Vec{});
  }
}

// An image of gradients, from those of its windows: `samples` is [channels, height / 2, width / 2].
inline void fill_pooled(const Team& team, const Image& image, const float* samples,
                        const Places<const uint8_t>& places, Index valid) {
  const Index height = image.height / 2, width = image.width / 2;
  const Index stride = image.channels * height * width;
  const Index pieces = std::clamp<Index>(height, 1, 4);
  team.share(image.channels * pieces, [&](Index task) {
    const Index c = task / pieces;
    const auto [y0, rows] = part(height, pieces, task % pieces);
    Vec* plane = image.pixels + c * image.plane();
    const bool last = task % pieces == pieces - 1;
    clear_borders(image, plane, 2 * y0, last ? image.height : 2 * (y0 + rows));
    // Windows of several rows together: the last of a row would be turned one by one.
    const Index first = c * height * width, end = (y0 + rows) * width;
    Vec line[LINE];
    for (Index i = y0 * width, y = y0, x = 0; i < end; i += LINE) {
      const Index some = std::min(LINE, end - i);
      to_lanes(samples + first + i, stride, valid, some, line);
      for (Index k = 0; k < some; ++k) {
        Vec* pixels = plane + 2 * y * image.row() + image.left + 2 * x;
        const LanePlaces place = load_places(places, first + i + k);
        pixels[0] = place == 0 ? line[k] : Vec{};
        pixels[1] = place == 1 ? line[k] : Vec{};
        pixels[image.row()] = place == 2 ? line[k] : Vec{};
        pixels[image.row() + 1] = place == 3 ? line[k] : Vec{};
        if (++x == width) x = 0, ++y;
      }
    }
  });
}

}  // namespace ABELE_LENGTH
}  // namespace abele
