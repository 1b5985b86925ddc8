// Convolutions as they are called: which of the ways computes one.
#include "conv.h"

using namespace abele;

int abele_conv_forward(const AbeleConv* description, const float* x, const float* weight,
                       const float* bias, float* y, int threads) {
  const Conv conv(*description);
  if (conv.channels_last && !channels_last::has_forward(conv)) return ABELE_NO_CODE;
  return guarded([&](Scratch& scratch) {
    if (conv.channels_last)
      channels_last::forward(conv, x, weight, bias, y, threads, scratch);
    else if (pixels::is_better(conv))
      pixels::forward(conv, x, weight, bias, y, threads, scratch);
    else
      planes::forward(conv, x, weight, bias, {y, nullptr, false}, threads, scratch);
  });
}

int abele_conv_backward(const AbeleConv* description, const float* grad, const float* x,
                        const float* weight, float* grad_x, float* grad_weight, float* grad_bias,
                        int threads) {
  const Conv conv(*description);
  const Gradients to = {grad_x, grad_weight, grad_bias};
  if (conv.channels_last && !channels_last::has_backward(conv, to)) return ABELE_NO_CODE;
  return guarded([&](Scratch& scratch) {
    if (conv.channels_last)
      channels_last::backward(conv, grad, x, weight, to, threads, scratch);
    else if (pixels::is_better(conv))
      pixels::backward(conv, grad, x, weight, to, threads, scratch);
    else
      planes::backward(conv, grad, nullptr, x, weight, to, threads, scratch);
  });
}

int abele_conv_pool(const AbeleConv* description, const float* x, const float* weight,
                    const float* bias, float* y, uint8_t* places, int threads) {
  const Conv conv(*description);
  if (conv.channels_last || (conv.slope != 0.0 && conv.slope != 1.0)) return ABELE_NO_CODE;
  return guarded([&](Scratch& scratch) {
    planes::forward(conv, x, weight, bias, {y, places, true}, threads, scratch);
  });
}

int abele_conv_pool_backward(const AbeleConv* description, const float* grad,
                             const uint8_t* places, const float* x, const float* weight,
                             float* grad_x, float* grad_weight, float* grad_bias, int threads) {
  const Conv conv(*description);
  if (conv.channels_last) return ABELE_NO_CODE;
  return guarded([&](Scratch& scratch) {
    planes::backward(conv, grad, places, x, weight, {grad_x, grad_weight, grad_bias}, threads,
                     scratch);
  });
}
