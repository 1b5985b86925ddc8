// Convolutions of large images with few channels, channels last.
#pragma once

#include <cstdint>

extern "C" {

// Stride 1, odd square kernels, padded so that images keep their size.
struct AbeleConv {
  int64_t images, height, width, in, out, kernel;
  double slope;  // of the activation below zero; 1 for none
};

// What the functions return besides 0. Without code or memory nothing is written.
constexpr int ABELE_CONV_NO_MEMORY = 2, ABELE_CONV_NO_CODE = 3;

// There is code for kernels of 1, 3 and 5 and rows of at least 16 pixels (8 without AVX-512).
// y = activation(x * weight + bias); weight as torch has it: [out, in, kernel, kernel].
// With `back`, x is a gradient [.., out], y that of the input [.., in]; no bias, no activation.
int abele_conv(const AbeleConv* conv, const float* x, const float* weight, const float* bias,
               float* y, int back, int threads);

// grad_weight [out, in, kernel, kernel] from the input and the gradient of the result. There is
// code for a multiple of 8 outputs and a multiple of 8 inputs, or one input.
int abele_conv_weight_gradient(const AbeleConv* conv, const float* x, const float* grad,
                               float* grad_weight, int threads);
}
