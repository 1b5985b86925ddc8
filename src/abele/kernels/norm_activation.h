// Batch normalisation over channels-last rows with its activation; see norm_activation.cpp.
#pragma once

#include <cstdint>

extern "C" {
struct AbeleNorm {
  int64_t rows, channels;  // rows: batch times pixels
  double momentum, eps, slope;
};

// `statistics` is [3][channels]: mean, 1 / standard deviation, and whether y alone is enough for
// backward. Returns the last of them: 1 or 0; and 2 if memory ran out.
int abele_norm_statistics(const AbeleNorm* norm, const float* x, const float* weight,
                          const float* bias, const float* mean, const float* var,
                          float* statistics, float* new_mean, float* new_var, int threads);

// y = leaky(normalised x * weight + bias); y may be x.
int abele_norm_apply(const AbeleNorm* norm, const float* x, const float* weight, const float* bias,
                     const float* statistics, float* y, int threads);

// Gradients from that of y. `kept` is y where `statistics` say so, else x. `grad_x` may be `grad`.
int abele_norm_backward(const AbeleNorm* norm, const float* grad, const float* kept,
                        const float* weight, const float* bias, const float* statistics,
                        float* grad_x, float* grad_weight, float* grad_bias, int threads);

// y = leaky(x * scale + shift), with `scale` and `shift` for each channel.
int abele_scale_shift(const AbeleNorm* norm, const float* x, const float* scale,
                      const float* shift, float* y, int threads);
}
