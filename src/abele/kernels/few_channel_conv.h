// Convolutions with few channels on plain pointers; see few_channel_conv.cpp.
#pragma once

#include <cstdint>

extern "C" {
// Sizes of the images, the kernel and the way it moves; `out_*` follow from the rest.
struct AbeleConv {
  int64_t batch, in_channels, in_height, in_width;
  int64_t out_channels, kernel_height, kernel_width;
  int64_t stride_height, stride_width, pad_height, pad_width;
  int64_t out_height, out_width;
};

// All tensors are contiguous NCHW; `bias` may be null. Returns 0, or 1 if memory ran out.
int abele_conv_forward(const AbeleConv* conv, const float* x, const float* weight,
                       const float* bias, float* y, int threads);

// Gradients of x, weight and bias; those that are null are not computed.
int abele_conv_backward(const AbeleConv* conv, const float* grad, const float* x,
                        const float* weight, float* grad_x, float* grad_weight,
                        float* grad_bias, int threads);
}
