// Pools over planes of images.
#pragma once

#include "parallel.h"

namespace abele {

// Sizes of one plane and of the windows on it.
struct Windows {
  Index planes, height, width, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, out_h, out_w;
};

// The largest of each window and where in the plane it was: the first of equals, the last NaN.
// Sizes of windows are known to the compiler, so that neighbouring windows share an instruction.
// Where a value was is its number in its window, or as int64_t in its plane.
template <int most, int kernel_h, int kernel_w, int stride_h, int stride_w, class Place>
inline void max_pool_inside(const Windows w, const float* x, float* y, Place* places,
                            int threads) {
  constexpr bool in_plane = sizeof(Place) == sizeof(int64_t);
  constexpr Index CHUNK = 64;
  share<most>(w.planes * w.out_h, threads, [=](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const Index top = row % w.out_h * stride_h * w.width;
      const float* from = x + row / w.out_h * w.height * w.width + top;
      for (Index first = 0; first < w.out_w; first += CHUNK) {
        const Index count = w.out_w - first < CHUNK ? w.out_w - first : CHUNK;
        int32_t at[CHUNK];
        float* to = y + row * w.out_w + first;
        const float* window = from + first * stride_w;
        const int32_t corner = static_cast<int32_t>(top + first * stride_w);
#pragma GCC ivdep
        for (Index i = 0; i < count; ++i) {
          float largest = window[i * stride_w];
          const int32_t begin_place = in_plane ? corner + static_cast<int32_t>(i) * stride_w : 0;
          int32_t place = begin_place;
#pragma GCC unroll 16
          for (int k = 1; k < kernel_h * kernel_w; ++k) {
            const Index step = k / kernel_w * w.width + k % kernel_w;
            const float value = window[i * stride_w + step];
            const bool taken = (value > largest) | (value != value);
            largest = taken ? value : largest;
            place = taken ? begin_place + (in_plane ? static_cast<int32_t>(step) : k) : place;
          }
          to[i] = largest, at[i] = place;
        }
        for (Index i = 0; i < count; ++i) places[row * w.out_w + first + i] = Place(at[i]);
      }
    }
  });
}

// The same for windows of any size that may reach over the edge.
template <int most>
inline void max_pool(const Windows w, const float* x, float* y, int64_t* places, int threads) {
  share<most>(w.planes, threads, [=](Index begin, Index end) {
    for (Index plane = begin; plane < end; ++plane)
      for (Index oy = 0; oy < w.out_h; ++oy)
        for (Index ox = 0; ox < w.out_w; ++ox) {
          const float* from = x + plane * w.height * w.width;
          const Index top = oy * w.stride_h - w.pad_h, left = ox * w.stride_w - w.pad_w;
          const Index y0 = top < 0 ? 0 : top, x0 = left < 0 ? 0 : left;
          const Index y1 = top + w.kernel_h < w.height ? top + w.kernel_h : w.height;
          const Index x1 = left + w.kernel_w < w.width ? left + w.kernel_w : w.width;
          float largest = -std::numeric_limits<float>::infinity();
          Index place = y0 * w.width + x0;
          for (Index i = y0; i < y1; ++i)
            for (Index j = x0; j < x1; ++j) {
              const float value = from[i * w.width + j];
              if (value > largest || value != value) largest = value, place = i * w.width + j;
            }
          const Index to = (plane * w.out_h + oy) * w.out_w + ox;
          y[to] = largest, places[to] = place;
        }
  });
}

template <int most>
inline void max_pool_backward(const Windows w, const float* grad, const int64_t* places,
                              float* grad_x, int threads) {
  share<most>(w.planes, threads, [=](Index begin, Index end) {
    for (Index plane = begin; plane < end; ++plane) {
      float* to = grad_x + plane * w.height * w.width;
      for (Index i = 0; i < w.height * w.width; ++i) to[i] = 0.0f;
      const Index first = plane * w.out_h * w.out_w;
      for (Index i = 0; i < w.out_h * w.out_w; ++i) to[places[first + i]] += grad[first + i];
    }
  });
}

// The same where windows do not overlap and places are numbers in them.
template <int most, int kernel_h, int kernel_w>
inline void max_pool_backward(const Windows w, const float* grad, const uint8_t* places,
                              float* grad_x, int threads) {
  share<most>(w.planes, threads, [=](Index begin, Index end) {
    for (Index plane = begin; plane < end; ++plane) {
      float* image = grad_x + plane * w.height * w.width;
      for (Index i = 0; i < w.height * w.width; ++i) image[i] = 0.0f;
      for (Index oy = 0; oy < w.out_h; ++oy) {
        const Index first = (plane * w.out_h + oy) * w.out_w;
        float* corner = image + oy * kernel_h * w.width;
        for (Index ox = 0; ox < w.out_w; ++ox, corner += kernel_w) {
          const int place = places[first + ox];
          corner[place / kernel_w * w.width + place % kernel_w] = grad[first + ox];
        }
      }
    }
  });
}

}  // namespace abele
