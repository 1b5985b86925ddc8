// Convolutions as they are called: which of the ways computes one.
#include "conv.h"

using namespace abele;

int abele_conv_forward(const AbeleConv* description, const float* x, const float* weight,
                       const float* bias, float* y, int threads) {
  const Conv conv(*description);
  if (conv.channels_last && !channels_last::has_forward(conv)) return ABELE_NO_CODE;
  const auto run = conv.channels_last        ? channels_last::forward
                   : pixels::is_better(conv) ? pixels::forward
                                             : planes::forward;
  return guarded([&](Scratch& scratch) { run(conv, x, weight, bias, y, threads, scratch); });
}

int abele_conv_backward(const AbeleConv* description, const float* grad, const float* x,
                        const float* weight, float* grad_x, float* grad_weight, float* grad_bias,
                        int threads) {
  const Conv conv(*description);
  const Gradients to = {grad_x, grad_weight, grad_bias};
  if (conv.channels_last && !channels_last::has_backward(conv, to)) return ABELE_NO_CODE;
  const auto run = conv.channels_last        ? channels_last::backward
                   : pixels::is_better(conv) ? pixels::backward
                                             : planes::backward;
  return guarded([&](Scratch& scratch) { run(conv, grad, x, weight, to, threads, scratch); });
}
