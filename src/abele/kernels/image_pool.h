// Max pooling of channels-last images over windows of 2x2.
#pragma once

#include <cstdint>

extern "C" {

// Of the larger images; height and width are even.
struct AbeleImagePool {
  int64_t images, height, width, channels;
};

// Largest value of each window and its place, 0 to 3 in scan order; places may be null. NaN counts
// as largest; the first of equal values is taken, and the last NaN, as torch does.
void abele_image_pool(const AbeleImagePool* pool, const float* x, float* y, uint8_t* places,
                      int threads);

// Each gradient goes to the place its value came from; the others get zero.
void abele_image_pool_backward(const AbeleImagePool* pool, const float* grad_y,
                               const uint8_t* places, float* grad_x, int threads);
}
