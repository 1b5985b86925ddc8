// Direct convolutions on blocks of samples: forward and backward of images with channels apart.
#include "correlation.h"
#include "pooled_gradient.h"
#include "weight_gradient.h"

namespace abele {
namespace {

Index lane_blocks(const Conv& conv) { return ceil_div(conv.images, LANES); }

// A correlation, its packed weights and the room its threads write to.
struct Correlator {
  Correlation c;
  Index in_channels, planned = 0;
  Columns* plan = nullptr;
  float* packed = nullptr;
  Each<Vec> out = {};

  Index weights() const { return c.out_channels * in_channels * c.kernel_h * c.kernel_w; }
  Index out_room() const { return MAX_ROWS * c.task_pixels(); }
  void prepare(const Packing& packing, Index width, int threads, Scratch& scratch) {
    plan = scratch.take<Columns>(c.max_columns());
    packed = scratch.take<float>(weights());
    out = scratch.each<Vec>(out_room(), threads);
    planned = plan_columns(c, width, plan);
    pack(c, packing, packed);
  }
  void run(const Team& team, int thread, const Image& in, const float* bias, float slope,
           float* to, const Places<uint8_t>& places, Index valid) const {
    const CorrelationTask task = {c, in, plan, planned, packed, bias, slope, to, places, valid};
    team.share(c.blocks() * c.groups(), [&](Index t) { task(t, out.of(thread)); });
  }
};

// One image for each team.
struct Images {
  Image image;
  int count;
  Each<Vec> pixels = {};
  Images(Image shape, Index blocks, int threads)
      : image(shape), count(blocks_per_thread(blocks, threads) ? threads : 1) {}
  void prepare(Scratch& scratch) { pixels = scratch.each<Vec>(image.size(), count); }
  Image of(int thread) const {
    Image result = image;
    result.pixels = pixels.of(count > 1 ? thread : 0);
    return result;
  }
};

}  // namespace

void planes::ABELE_LENGTH::forward(const Conv& conv, const float* x, const float* weight,
                                   const float* bias, const Outputs& to, int threads,
                                   Scratch& scratch) {
  Correlator correlator = {{conv.out_channels, conv.out_height, conv.out_width,
                            conv.kernel_height, conv.kernel_width, conv.stride_height,
                            conv.stride_width, conv.pad_height, conv.pad_width, 1, 1,
                            to.pooled ? 2 : 1},
                           conv.in_channels};
  const Correlation& c = correlator.c;
  const Index blocks = lane_blocks(conv), taps = c.kernel_h * c.kernel_w;
  Images inputs({conv.in_channels, conv.in_height, conv.in_width, c.left(),
                 c.right(conv.in_width), nullptr},
                blocks, threads);
  inputs.prepare(scratch);
  correlator.prepare({weight, conv.in_channels * taps, taps, conv.in_channels, false},
                     conv.in_width, threads, scratch);
  const float slope = static_cast<float>(conv.slope);
  const Index out_size = conv.out_channels * c.kept_height() * c.kept_width();
  with_teams(blocks, threads, [&](const Team& team, int thread) {
    const Image in = inputs.of(thread);
    for (Index b = team.blocks.begin; b < team.end(); ++b) {
      const Index n = b * LANES, valid = std::min<Index>(LANES, conv.images - n);
      fill(team, in, x + n * conv.in_size(), valid);
      team.wait();
      correlator.run(team, thread, in, bias, slope, to.y + n * out_size,
                     Places<uint8_t>{to.places, out_size}.from(n, 0), valid);
      team.wait();
    }
  });
}

namespace {

// Threads with blocks of their own add up weight gradients of their own; the first uses the result.
struct Partial {
  float *weight, *bias;
  Index weight_size, bias_size;

  Partial of(int thread, float* others) const {
    if (thread == 0) return *this;
    float* own = others + (thread - 1) * (weight_size + bias_size);
    return {weight == nullptr ? nullptr : own, bias == nullptr ? nullptr : own + weight_size,
            weight_size, bias_size};
  }
  void add(const Partial& other) const {
    for (Index i = 0; weight != nullptr && i < weight_size; ++i) weight[i] += other.weight[i];
    for (Index i = 0; bias != nullptr && i < bias_size; ++i) bias[i] += other.bias[i];
  }
};

struct Backward {
  const Conv& conv;
  const float *grad, *x;
  const uint8_t* places;
  float* grad_x;
  const Correlator& correlator;
  const Images &grads, &inputs;

  void operator()(const Team& team, int thread, const Partial& result) const {
    const WeightGradient weights = {conv, grads.of(thread), inputs.of(thread)};
    for (Index b = team.blocks.begin; b < team.end(); ++b) {
      const Index n = b * LANES, valid = std::min<Index>(LANES, conv.images - n);
      const bool first = b == team.blocks.begin;
      const bool by_windows = places != nullptr && PooledGradient::has_code(conv);
      if (grad_x != nullptr || !by_windows) fill_gradient(team, weights.grad, n, valid);
      if (result.weight != nullptr) fill(team, weights.x, x + n * conv.in_size(), valid);
      team.wait();
      if (by_windows)
        of_windows(team, weights.x, n, valid, result, first);
      else
        of_pixels(team, weights, result, first);
      if (grad_x != nullptr)
        correlator.run(team, thread, weights.grad, nullptr, 1.0f, grad_x + n * conv.in_size(), {},
                       valid);
      team.wait();
    }
  }

  void of_pixels(const Team& team, const WeightGradient& weights, const Partial& result,
                 bool first) const {
    if (result.weight != nullptr)
      team.share(weights.tasks(), [&](Index t) { weights(t, result.weight, first); });
    if (result.bias != nullptr)
      team.share(conv.out_channels, [&](Index o) { weights.bias(o, result.bias, first); });
  }

  void of_windows(const Team& team, const Image& image, Index n, Index valid, const Partial& result,
                  bool first) const {
    if (result.weight == nullptr && result.bias == nullptr) return;
    const PooledGradient gradient = {conv, grad + n * of_window_size(), placed(n), image, valid};
    team.share(conv.out_channels,
               [&](Index o) { gradient(o, result.weight, result.bias, first); });
  }

  Index of_window_size() const {
    return conv.out_channels * (conv.out_height / 2) * (conv.out_width / 2);
  }
  Places<const uint8_t> placed(Index n) const {
    return Places<const uint8_t>{places, of_window_size()}.from(n, 0);
  }

  void fill_gradient(const Team& team, const Image& image, Index n, Index valid) const {
    if (places == nullptr) return fill(team, image, grad + n * conv.out_size(), valid);
    fill_pooled(team, image, grad + n * of_window_size(), placed(n), valid);
  }
};

}  // namespace

void planes::ABELE_LENGTH::backward(const Conv& conv, const float* grad, const uint8_t* places,
                                    const float* x, const float* weight, const Gradients& to,
                                    int threads, Scratch& scratch) {
  Correlator correlator = {{conv.in_channels, conv.in_height, conv.in_width, conv.kernel_height,
                            conv.kernel_width, 1, 1, conv.kernel_height - 1 - conv.pad_height,
                            conv.kernel_width - 1 - conv.pad_width, conv.stride_height,
                            conv.stride_width},
                           conv.out_channels};
  const Correlation& c = correlator.c;
  const Index blocks = lane_blocks(conv), taps = conv.taps();
  const bool wants_x = to.x != nullptr;
  Images grads({conv.out_channels, conv.out_height, conv.out_width, wants_x ? c.left() : 0,
                wants_x ? c.right(conv.out_width) : 0, nullptr},
               blocks, threads);
  const Index reach = (conv.out_width - 1) * conv.stride_width + conv.kernel_width;
  Images inputs({conv.in_channels, conv.in_height, conv.in_width, conv.pad_width,
                 std::max<Index>(0, reach - conv.pad_width - conv.in_width), nullptr},
                blocks, threads);
  const Partial result = {to.weight, to.bias, conv.weights(), conv.out_channels};
  grads.prepare(scratch);
  inputs.prepare(scratch);
  correlator.prepare({weight, taps, conv.in_channels * taps, conv.out_channels, true},
                     conv.out_width, threads, scratch);
  float* others = scratch.take<float>(threads * (result.weight_size + result.bias_size));
  const Backward run = {conv, grad, x, places, to.x, correlator, grads, inputs};
  const bool own = blocks_per_thread(blocks, threads);
  const int started = with_teams(blocks, threads, [&](const Team& team, int thread) {
    run(team, thread, result.of(own ? thread : 0, others));
  });
  for (int thread = 1; own && thread < started; ++thread) result.add(result.of(thread, others));
}

}  // namespace abele
