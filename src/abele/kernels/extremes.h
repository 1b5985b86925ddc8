// Largest and smallest numbers, where they are, and variances.
#pragma once

#include "sums.h"

namespace abele {

struct Largest {
  template <class T>
  static T start() {
    return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                : std::numeric_limits<T>::lowest();
  }
  template <class T>
  static T of(T a, T b) { return maximum(a, b); }
};
struct Smallest {
  template <class T>
  static T start() {
    return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                : std::numeric_limits<T>::max();
  }
  template <class T>
  static T of(T a, T b) { return minimum(a, b); }
};

// The largest or smallest of n neighbours; NaN if one of them is.
template <class Which, class T>
inline T extreme_of(Index n, const T* x) {
  T lanes[LANES];
  for (int l = 0; l < LANES; ++l) lanes[l] = Which::template start<T>();
  Index i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l) lanes[l] = Which::of(lanes[l], x[i + l]);
  for (int l = 0; l < LANES && i < n; ++i, ++l) lanes[l] = Which::of(lanes[l], x[i]);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] = Which::of(lanes[l], lanes[l + width]);
  return lanes[0];
}

// The largest of n neighbours that are numbers; minus infinity if there are none. Where NaN reaches
// the result by another way, this is a quarter of the work.
inline float largest_number(Index n, const float* x) {
  const auto larger = [](float a, float b) { return a > b ? a : b; };
  float lanes[LANES];
  for (int l = 0; l < LANES; ++l) lanes[l] = -std::numeric_limits<float>::infinity();
  Index i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l) lanes[l] = larger(x[i + l], lanes[l]);
  for (int l = 0; l < LANES && i < n; ++i, ++l) lanes[l] = larger(x[i], lanes[l]);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] = larger(lanes[l + width], lanes[l]);
  return lanes[0];
}

template <class Which, int most, class T>
inline void extremes(Index rows, Index size, const T* x, T* y, int threads) {
  share<most>(rows, threads, [=](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) y[row] = extreme_of<Which>(size, x + row * size);
  });
}

// Where it is: the first of equals, the first NaN.
template <class Which, class T>
inline Index place_of_extreme(Index n, const T* x) {
  const T value = extreme_of<Which>(n, x);
  Index place = 0;
  if (value == value)
    while (x[place] != value) ++place;
  else
    while (x[place] == x[place]) ++place;
  return place;
}

template <class Which, int most, class T>
inline void places_of_extremes(Index rows, Index size, const T* x, int64_t* places, int threads) {
  share<most>(rows, threads, [=](Index begin, Index end) {
    for (Index row = begin; row < end; ++row)
      places[row] = place_of_extreme<Which>(size, x + row * size);
  });
}

template <class Which, int most, class T>
inline void extremes_and_places(Index rows, Index size, const T* x, T* y, int64_t* places,
                                int threads) {
  share<most>(rows, threads, [=](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      places[row] = place_of_extreme<Which>(size, x + row * size);
      y[row] = x[row * size + places[row]];
    }
  });
}

// Variance with `divisor` instead of the count, its root with `root`;
// the mean where `to_mean` is given.
template <int most, bool root, class T>
inline void variances(Index rows, Index size, double divisor, const T* x, T* variance,
                      decltype(variance) to_mean,
                      int threads) {
  share<most>(rows, threads, [=](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const T* from = x + row * size;
      const T mean = T(long_sum_of(size, [=](Index i) { return from[i]; }) / double(size));
      const auto square = [=](Index i) { return (from[i] - mean) * (from[i] - mean); };
      const double result = long_sum_of(size, square) / divisor;
      variance[row] = T(root ? std::sqrt(result) : result);
      if (to_mean != nullptr) to_mean[row] = mean;
    }
  });
}

}  // namespace abele
