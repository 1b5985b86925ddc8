// Convolutions: what both ways to compute them share.
//
// A register holds one pixel of several samples, or several channels of one pixel. The first fills
// registers whatever the number of channels, but needs many samples of small images; the second is
// for large images of few samples. Each is many times faster than the other where it belongs.
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

// Images with their channels apart, in blocks of samples: conv_planes.cpp.
namespace planes {
void forward(const Conv& conv, const float* x, const float* weight, const float* bias, float* y,
             int threads, Scratch& scratch);
void backward(const Conv& conv, const float* grad, const float* x, const float* weight,
              const Gradients& to, int threads, Scratch& scratch);
}  // namespace planes

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
