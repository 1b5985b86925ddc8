// Direct convolutions of few samples: their images are computed one by one.
#include "pixels.h"

namespace abele {
namespace {

using namespace pixels;

// Padded images that are computed between two waits; they should stay in cache.
constexpr Index FLOATS_AT_ONCE = 65536;

Index at_once(Index images, Index floats) {
  return std::clamp<Index>(FLOATS_AT_ONCE / floats, 1, images);
}

Plan forward_plan(const Conv& conv) {
  return {conv.in_channels,  conv.out_channels, conv.out_height, conv.out_width,
          conv.kernel_height, conv.kernel_width, conv.in_width + conv.pad_width,
          conv.taps(), conv.in_channels * conv.taps(), false};
}

// The gradient of the input is a convolution of the other with flipped weights; its rows are as
// far apart as those of the input.
Plan backward_plan(const Conv& conv) {
  return {conv.out_channels,  conv.in_channels, conv.in_height, conv.in_width,
          conv.kernel_height, conv.kernel_width, conv.in_width + conv.pad_width,
          conv.in_channels * conv.taps(), conv.taps(), true};
}

Padded padded_input(const Conv& conv, const Plan& plan) {
  return {conv.in_channels, conv.in_height, conv.in_width, conv.pad_height, conv.pad_width,
          plan.pitch, ceil_div(plan.reach(), LANES) * LANES};
}
Padded padded_gradient(const Conv& conv, const Plan& plan, const Plan& back) {
  Padded result = {conv.out_channels, conv.out_height, conv.out_width,
                   conv.kernel_height - 1 - conv.pad_height, conv.kernel_width - 1 - conv.pad_width,
                   plan.pitch, 0};
  const Index floats = std::max(back.reach(), result.first() + plan.vectors() * LANES);
  result.plane = ceil_div(floats, LANES) * LANES;
  return result;
}

}  // namespace

// Both ways spend their time on vectors of outputs; ours, unlike those of samples, need not be
// transposed, which is worth as much as one vector in twenty.
bool pixels::is_better(const Conv& conv) {
  const bool plain = conv.stride_height == 1 && conv.stride_width == 1 &&
                     conv.pad_height < conv.kernel_height && conv.pad_width < conv.kernel_width;
  if (!plain || conv.channels_last) return false;
  const Index halves = planes::is_better_in_halves(conv, 1) ? 1 : 2 * ceil_div(conv.images, LANES);
  const Index of_samples = halves * conv.out_height * conv.out_width;
  return 40 * conv.images * forward_plan(conv).vectors() <= 21 * of_samples;
}

void pixels::forward(const Conv& conv, const float* x, const float* weight, const float* bias,
                     float* y, int threads, Scratch& scratch) {
  const Plan plan = forward_plan(conv);
  const Padded input = padded_input(conv, plan);
  const Index count = at_once(conv.images, input.size());
  float* images = scratch.take<float>(count * input.size());
  float* packed = scratch.take<float>(conv.weights());
  float* rooms = scratch.take<float>(threads * plan.room());
  plan.pack(weight, packed);
  const Band band = {plan, packed, bias, static_cast<float>(conv.slope), input.plane};
  with_teams(1, threads, [&](const Team& team, int thread) {
    for (Index n = 0; n < conv.images; n += count) {
      const Index some = std::min(count, conv.images - n);
      team.share(some * input.channels, [&](Index t) {
        const Index i = t / input.channels;
        input.fill(t % input.channels, x + (n + i) * conv.in_size(), images + i * input.size());
      });
      team.wait();
      team.share(some * plan.tasks(), [&](Index t) {
        const Index i = t / plan.tasks();
        band(t % plan.tasks(), images + i * input.size(), rooms + thread * plan.room(),
              y + (n + i) * conv.out_size());
      });
      team.wait();
    }
  });
}

void pixels::backward(const Conv& conv, const float* grad, const float* x, const float* weight,
                      const Gradients& to, int threads, Scratch& scratch) {
  const Plan plan = forward_plan(conv), back = backward_plan(conv);
  const Padded input = padded_input(conv, plan), gradient = padded_gradient(conv, plan, back);
  const Index count = at_once(conv.images, input.size() + gradient.size());
  float* images = scratch.take<float>(count * input.size());
  float* grads = scratch.take<float>(count * gradient.size());
  float* packed = scratch.take<float>(conv.weights());
  float* rooms = scratch.take<float>(threads * back.room());
  back.pack(weight, packed);
  const Band band = {back, packed, nullptr, 1.0f, gradient.plane};
  const Weights weights = {conv, plan, input, gradient, images, grads};
  const Index weight_tasks = to.weight == nullptr ? 0 : weights.tasks();
  const Index bias_tasks = to.bias == nullptr ? 0 : conv.out_channels;
  const Index bands = to.x == nullptr ? 0 : back.tasks();
  with_teams(1, threads, [&](const Team& team, int thread) {
    for (Index n = 0; n < conv.images; n += count) {
      const Index some = std::min(count, conv.images - n);
      team.share(some * gradient.channels, [&](Index t) {
        const Index i = t / gradient.channels;
        gradient.fill(t % gradient.channels, grad + (n + i) * conv.out_size(),
                      grads + i * gradient.size());
      });
      if (weight_tasks > 0)
        team.share(some * input.channels, [&](Index t) {
          const Index i = t / input.channels;
          input.fill(t % input.channels, x + (n + i) * conv.in_size(), images + i * input.size());
        });
      team.wait();
      team.share(weight_tasks, [&](Index t) { weights(t, some, to.weight, n == 0); });
      team.share(bias_tasks, [&](Index o) { weights.bias(o, some, to.bias, n == 0); });
      team.share(some * bands, [&](Index t) {
        const Index i = t / bands;
        band(t % bands, grads + i * gradient.size(), rooms + thread * back.room(),
              to.x + (n + i) * conv.in_size());
      });
      team.wait();
    }
  });
}

}  // namespace abele
