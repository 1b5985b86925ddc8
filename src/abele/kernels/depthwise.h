// Depthwise convolutions: sizes, and registers that hold pixels of a row with zeros around it.
#pragma once

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <array>
#include <utility>

#include "lanes.h"

namespace abele::depthwise {

// Kernels of size x size that advance by `step`.
struct Depthwise : AbeleDepthwise {
  Index out_height, out_width;
  explicit Depthwise(const AbeleDepthwise& d)
      : AbeleDepthwise(d),
        out_height((in_height + 2 * pad_height - size) / step + 1),
        out_width((in_width + 2 * pad_width - size) / step + 1) {}
  Index in_plane() const { return in_height * in_width; }
  Index out_plane() const { return out_height * out_width; }
};

using Numbers = int32_t __attribute__((vector_size(LANES * sizeof(int32_t))));

// The lanes of a register that belong to a row, which begins `before` lanes behind the register's first
// and has `count` elements. Others are not read, nor written: there may be no memory.
class Within {
 public:
  Within(Index before, Index count) {
#if defined(__AVX512F__)
    const Index begin = bounded(before), end = bounded(before + count);
    mask_ = static_cast<__mmask16>((1u << end) - (1u << begin));
#else
    for (Index i = 0; i < LANES; ++i) mask_[i] = i >= before && i < before + count ? -1 : 0;
#endif
  }

  Vec load(const float* from) const {
#if defined(__AVX512F__)
    return (Vec)_mm512_maskz_loadu_ps(mask_, from);
#elif defined(__AVX__)
    return (Vec)_mm256_maskload_ps(from, (__m256i)mask_);
#else
    Vec value = {};
    for (int i = 0; i < LANES; ++i)
      if (mask_[i]) value[i] = from[i];
    return value;
#endif
  }

  void store(float* to, Vec value) const {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, mask_, (__m512)value);
#elif defined(__AVX__)
    _mm256_maskstore_ps(to, (__m256i)mask_, (__m256)value);
#else
    for (int i = 0; i < LANES; ++i)
      if (mask_[i]) to[i] = value[i];
#endif
  }

 private:
#if defined(__AVX512F__)
  static Index bounded(Index lane) { return lane < 0 ? 0 : lane > LANES ? LANES : lane; }
  __mmask16 mask_;
#else
  Numbers mask_;
#endif
};

// Planes that are needed next. Registers go down the columns of a plane, so each of their rows is another
// line, and a processor does not foresee that: planes came from memory line by line, which took four
// times as long as computing. They come into the second-level cache in the order of memory, some lines
// with each turn of a loop.
class Ahead {
 public:
  // Adds a plane of so many floats, which come in the course of so many turns.
  void add(const float* plane, Index count, Index turns) {
    if (count < LEAST || count > MOST) return;
    const auto begin = reinterpret_cast<const char*>(plane);
    const Index bytes = count * Index(sizeof(float));
    planes_[planes_in_use_++] = {begin, begin + bytes, (bytes / LINE) / (turns ? turns : 1) + 1};
  }
  void turn() {
    for (int i = 0; i < planes_in_use_; ++i) {
      Coming& plane = planes_[i];
      for (Index line = 0; line < plane.lines && plane.at < plane.end; ++line, plane.at += LINE)
        __builtin_prefetch(plane.at, 0, 2);
    }
  }

 private:
  // Smaller planes are soon there; larger ones would push each other out.
  static constexpr Index LINE = 64, LEAST = 1 << 11, MOST = 1 << 16;
  struct Coming {
    const char *at, *end;
    Index lines;
  };
  std::array<Coming, 3> planes_;
  int planes_in_use_ = 0;
};

// Every second lane of two registers, and the way back: the first half of the lanes, or the second.
constexpr auto EACH_LANE = std::make_integer_sequence<int, LANES>();
template <int... i>
inline Vec every_second(Vec a, Vec b, std::integer_sequence<int, i...>) {
  return ABELE_SHUFFLE(Numbers, a, b, 2 * i...);
}
template <int half, int... i>
inline Vec in_turns(Vec a, Vec b, std::integer_sequence<int, i...>) {
  return ABELE_SHUFFLE(Numbers, a, b, (i % 2 * LANES + half * LANES / 2 + i / 2)...);
}

// Pixels `first`, `first + step`, ... of rows of `count` pixels; those outside are zero.
template <int step>
class Pixels;

template <>
class Pixels<1> {
 public:
  Pixels(Index first, Index count) : first_(first), within_(-first, count) {}
  Vec of(const float* row) const { return within_.load(row + first_); }

 private:
  Index first_;
  Within within_;
};

template <>
class Pixels<2> {
 public:
  Pixels(Index first, Index count)
      : first_(first), low_(-first, count), high_(-first - LANES, count) {}
  Vec of(const float* row) const {
    return every_second(low_.load(row + first_), high_.load(row + first_ + LANES), EACH_LANE);
  }

 private:
  Index first_;
  Within low_, high_;
};

}  // namespace abele::depthwise
