// Convolutions as they are called: which of the ways computes one.
#include "conv.h"
#include "images.h"

#if defined(__AVX512VL__)
#include <cpuid.h>
#endif

namespace abele {
namespace {

#if defined(__AVX512VL__)
// The family of a processor of AMD; 0 of others.
unsigned amd_family() {
  unsigned a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || c != signature_AMD_ecx) return 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  const unsigned family = a >> 8 & 15;
  return family == 15 ? family + (a >> 20 & 255) : family;
}
// Zen 4, which multiplies 512 bits in two steps.
constexpr unsigned ZEN_4 = 0x19;

bool halves_are_as_fast() {
  static const bool result = amd_family() == ZEN_4;
  return result;
}

#else
bool halves_are_as_fast() { return false; }
#endif

}  // namespace

// Halves are better for samples that fill no more, and where each thread has its own. Where they multiply
// at half the rate they never are: threads have images of their own instead, if these are small.
bool planes::is_better_in_halves(const Conv& conv, int threads) {
  const Index wholes = ceil_div(conv.images, LANES), halves = ceil_div(conv.images, LANES / 2);
  const bool apart = !blocks_per_thread(wholes, threads) && blocks_per_thread(halves, threads);
  return halves_are_as_fast() && (halves == 1 || apart);
}

bool planes::are_apart(const Conv& conv, int threads) {
  const Index lanes = is_better_in_halves(conv, threads) ? LANES / 2 : LANES;
  return blocks_per_thread(ceil_div(conv.images, lanes), threads) ||
         are_small((conv.in_size() + conv.out_size()) * LANES);
}

void planes::forward(const Conv& conv, const float* x, const float* weight, const float* bias,
                     const Outputs& to, int threads, Scratch& scratch) {
#if defined(__AVX512VL__)
  if (is_better_in_halves(conv, threads))
    return half_registers::forward(conv, x, weight, bias, to, threads, scratch);
#endif
  whole_registers::forward(conv, x, weight, bias, to, threads, scratch);
}

void planes::backward(const Conv& conv, const float* grad, const uint8_t* places, const float* x,
                      const float* weight, const Gradients& to, int threads, Scratch& scratch) {
#if defined(__AVX512VL__)
  if (is_better_in_halves(conv, threads))
    return half_registers::backward(conv, grad, places, x, weight, to, threads, scratch);
#endif
  whole_registers::backward(conv, grad, places, x, weight, to, threads, scratch);
}

}  // namespace abele

using namespace abele;

int abele_conv_threads(const AbeleConv* description, int available) {
  const Conv conv(*description);
  const int apart = abele_threads(0, 4 * conv.multiply_adds(), available);
  // Threads that share samples wait for each other, and each reads what others wrote: for few
  // products, that takes longer than one thread needs.
  return planes::are_apart(conv, apart) ? apart
                                        : abele_threads(0, conv.multiply_adds(), available);
}

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
