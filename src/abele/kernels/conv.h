// Convolutions: what the ways to compute them share.
//
// A register holds one pixel of several samples, neighbouring pixels of one sample, or several
// channels of one pixel. The first fills registers whatever the number of channels, but needs many
// samples of small images; the second needs one sample, but computes what lies between two rows,
// too; the third is for channels-last images. Each is many times faster than the others where it
// belongs.
#pragma once

#include "calls.h"

namespace abele {

// The description, and the sizes that follow from it.
struct Conv : AbeleConv {
  Index out_height, out_width;
  explicit Conv(const AbeleConv& conv)
      : AbeleConv(conv),
        out_height((in_height + 2 * pad_height - kernel_height) / stride_height + 1),
        out_width((in_width + 2 * pad_width - kernel_width) / stride_width + 1) {}
  Index in_size() const { return in_channels * in_height * in_width; }
  Index out_size() const { return out_channels * out_height * out_width; }
  Index taps() const { return kernel_height * kernel_width; }
  Index weights() const { return out_channels * in_channels * taps(); }
  Index multiply_adds() const { return images * out_height * out_width * weights(); }
};

struct Gradients {
  float *x, *weight, *bias;  // null: not wanted
};

// Images with their channels apart, in blocks of samples: conv_planes.cpp. They may be pooled, and
// `places`, unless null, say which pixels are left.
namespace planes {
struct Outputs {
  float* y;
  uint8_t* places;
  bool pooled;
};
#define ABELE_PLANES                                                                               \
  void forward(const Conv& conv, const float* x, const float* weight, const float* bias,           \
               const Outputs& to, int threads, Scratch& scratch);                                  \
  void backward(const Conv& conv, const float* grad, const uint8_t* places, const float* x,        \
                const float* weight, const Gradients& to, int threads, Scratch& scratch);
// With samples in whole registers, in halves of them, and in what is faster.
namespace whole_registers {
ABELE_PLANES
}
namespace half_registers {
ABELE_PLANES
}
ABELE_PLANES
#undef ABELE_PLANES
// Whether halves of registers are.
bool is_better_in_halves(const Conv& conv, int threads);
// Images of so few numbers are filled by each thread for itself: threads that share them wait for each
// other, and read what others have written. That takes longer, on some machines several times as long.
inline bool are_small(Index numbers) { return numbers <= 1 << 17; }
// Whether each thread has samples of its own, or images of its own.
bool are_apart(const Conv& conv, int threads);
}  // namespace planes

// The same images one by one: conv_pixels.cpp.
namespace pixels {
// Whether there is code for a convolution, and it is faster than that in blocks.
bool is_better(const Conv& conv);
void forward(const Conv& conv, const float* x, const float* weight, const float* bias, float* y,
             int threads, Scratch& scratch);
void backward(const Conv& conv, const float* grad, const float* x, const float* weight,
              const Gradients& to, int threads, Scratch& scratch);
}  // namespace pixels

// Channels-last images, row by row: conv_channels_last.cpp.
namespace channels_last {
bool has_forward(const Conv& conv);
bool has_backward(const Conv& conv, const Gradients& wanted);
void forward(const Conv& conv, const float* x, const float* weight, const float* bias, float* y,
             int threads, Scratch& scratch);
void backward(const Conv& conv, const float* grad, const float* x, const float* weight,
              const Gradients& to, int threads, Scratch& scratch);
}  // namespace channels_last

}  // namespace abele
