// Convolutions of large images with few channels, channels last, as the schedules call them.
#pragma once

#include <cstdint>

extern "C" {

// Stride 1, odd square kernels, padded so that images keep their size.
struct AbeleConv {
  int64_t images, height, width, in, out, kernel;
  double slope;  // of the activation below zero; 1 for none
};

// y = activation(x * weight + bias); weight as torch has it: [out, in, kernel, kernel].
// With `back`, x is a gradient [.., out], y that of the input [.., in]; no bias, no activation.
int abele_conv(const AbeleConv* conv, const float* x, const float* weight, const float* bias,
               float* y, int back, int threads);

// grad_weight [out, in, kernel, kernel] from the input and the gradient of the result.
int abele_conv_weight_gradient(const AbeleConv* conv, const float* x, const float* grad,
                               float* grad_weight, int threads);
}
