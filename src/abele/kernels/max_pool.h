// Max pooling on plain pointers; see max_pool.cpp.
#pragma once

#include <cstdint>

extern "C" {
// Windows that lie inside the image, without padding or dilation.
struct AbelePool {
  int64_t planes, in_height, in_width;  // batch times channels
  int64_t kernel_height, kernel_width, stride_height, stride_width;
  int64_t out_height, out_width;
};

// Largest value of each window and its place in the plane. NaN counts as largest; the first of
// equal values is taken, and the last NaN, as torch does.
void abele_max_pool(const AbelePool* pool, const float* x, float* values, int64_t* indices,
                    int threads);
}
