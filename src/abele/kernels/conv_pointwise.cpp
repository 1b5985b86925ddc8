// Convolutions of 1x1 of channels-last images: products of matrices whose rows are pixels.
//
// With a stride, the pixels that are read are brought together first: they are fewer than the others.
#include <algorithm>

#include "channel_sums.h"
#include "conv.h"
#include "product.h"

namespace abele::pointwise {
namespace {

struct Pointwise : Conv {
  Index pixels;  // of results
  explicit Pointwise(const AbeleConv& conv)
      : Conv(conv), pixels(images * out_height * out_width) {}
  bool strided() const { return stride_height > 1 || stride_width > 1; }
  // The pixel that a result's one is computed from.
  Index read_by(Index pixel) const {
    const Index column = pixel % out_width, row = pixel / out_width;
    const Index image = row / out_height, y = row % out_height * stride_height;
    return (image * in_height + y) * in_width + column * stride_width;
  }
};

// The pixels that are read, one after the other.
const float* together(const Pointwise& p, const float* x, int threads, Scratch& memory) {
  if (!p.strided()) return x;
  const Index channels = p.in_channels;
  float* to = memory.take<float>(p.pixels * channels);
  for_each(p.pixels, threads, [&](Index pixel) {
    std::copy_n(x + p.read_by(pixel) * channels, channels, to + pixel * channels);
  });
  return to;
}

// The way back; pixels that are not read have gradients of zero.
void apart(const Pointwise& p, const float* grads, float* to, int threads) {
  const Index channels = p.in_channels;
  for_each(p.images * p.in_height * p.in_width, threads, [&](Index pixel) {
    const Index column = pixel % p.in_width, row = pixel / p.in_width % p.in_height;
    const Index image = pixel / p.in_width / p.in_height;
    float* place = to + pixel * channels;
    if (row % p.stride_height || column % p.stride_width)
      return static_cast<void>(std::fill_n(place, channels, 0.0f));
    const Index y = row / p.stride_height, x = column / p.stride_width;
    const Index from = (image * p.out_height + y) * p.out_width + x;
    std::copy_n(grads + from * channels, channels, place);
  });
}

// One product of [rows, inner] and [inner, columns]; rows of the result are whole.
AbeleProduct described(Index rows, Index columns, Index inner, Index a_row, Index a_column,
                       Index b_row, Index b_column, bool added) {
  return {1, rows, columns, inner, 0, a_row, a_column, 0, b_row, b_column, 0, columns, 0, added, 0};
}

void forward(const Pointwise& p, const float* x, const float* weight, const float* bias, float* y,
             int threads, Scratch& memory) {
  const Index in = p.in_channels, out = p.out_channels;
  const float* pixels = together(p, x, threads, memory);
  if (bias != nullptr)
    for_each(p.pixels, threads, [&](Index i) { std::copy_n(bias, out, y + i * out); });
  const AbeleProduct sizes = described(p.pixels, out, in, in, 1, 1, in, bias != nullptr);
  product(sizes, pixels, weight, y, threads, memory);
}

void backward(const Pointwise& p, const float* grad, const float* x, const float* weight,
              const Gradients& to, int threads, Scratch& memory) {
  const Index in = p.in_channels, out = p.out_channels;
  if (to.x != nullptr) {
    float* pixels = p.strided() ? memory.take<float>(p.pixels * in) : to.x;
    const AbeleProduct sizes = described(p.pixels, in, out, out, 1, in, 1, false);
    product(sizes, grad, weight, pixels, threads, memory);
    if (p.strided()) apart(p, pixels, to.x, threads);
  }
  if (to.weight != nullptr) {
    const float* pixels = together(p, x, threads, memory);
    const AbeleProduct sizes = described(out, in, p.pixels, 1, out, in, 1, false);
    product(sizes, grad, pixels, to.weight, threads, memory);
  }
  if (to.bias != nullptr)
    channels_last::channel_sums<8>(p.images * p.out_height, p.out_width, out, grad, to.bias,
                                   threads, memory);
}

// Calls run(convolution, memory), if there is code for one.
template <class Run>
int run_if_possible(const AbeleConv& description, Run run) {
  const Pointwise p(description);
  const bool plain = p.channels_last && p.slope == 1.0 && p.taps() == 1;
  if (!plain || p.pad_height || p.pad_width || p.pixels < 2) return ABELE_NO_CODE;
  return guarded([&](Scratch& memory) { run(p, memory); });
}

}  // namespace
}  // namespace abele::pointwise

using namespace abele;

int abele_pointwise_forward(const AbeleConv* description, const float* x, const float* weight,
                            const float* bias, float* y, int threads) {
  return pointwise::run_if_possible(
      *description, [&](const pointwise::Pointwise& p, Scratch& memory) {
        pointwise::forward(p, x, weight, bias, y, threads, memory);
      });
}

int abele_pointwise_backward(const AbeleConv* description, const float* grad, const float* x,
                             const float* weight, float* grad_x, float* grad_weight,
                             float* grad_bias, int threads) {
  return pointwise::run_if_possible(
      *description, [&](const pointwise::Pointwise& p, Scratch& memory) {
        const Gradients to = {grad_x, grad_weight, grad_bias};
        pointwise::backward(p, grad, x, weight, to, threads, memory);
      });
}
