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
    const Index groups = c.groups(team.size);
    const CorrelationTask task = {c,    groups, in, plan,   planned, packed,
                                  bias, slope,  to, places, valid};
    team.share(c.blocks() * groups, [&](Index t) { task(t, out.of(thread)); });
  }
};

// One image for each team, or for each thread.
struct Images {
  Image image;
  int count;
  Each<Vec> pixels = {};
  Images(Image shape, int count) : image(shape), count(count) {}
  void prepare(Scratch& scratch) { pixels = scratch.each<Vec>(image.size(), count); }
  Image of(int thread) const {
    Image result = image;
    result.pixels = pixels.of(count > 1 ? thread : 0);
    return result;
  }
};

// Who fills images: all threads of a team, or each its own.
struct Filling {
  bool own;
  Team by(const Team& team) const { return own ? Team{0, 1, team.blocks} : team; }
  int images(Index blocks, int threads) const {
    return own || blocks_per_thread(blocks, threads) ? threads : 1;
  }
  void wait(const Team& team) const {
    if (!own) team.wait();
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
  const Image image = {conv.in_channels, conv.in_height, conv.in_width, c.left(),
                       c.right(conv.in_width), nullptr};
  const Filling filling = {planes::are_small(image.size() * LANES)};
  Images inputs(image, filling.images(blocks, threads));
  inputs.prepare(scratch);
  correlator.prepare({weight, conv.in_channels * taps, taps, conv.in_channels, false},
                     conv.in_width, threads, scratch);
  const float slope = static_cast<float>(conv.slope);
  const Index out_size = conv.out_channels * c.kept_height() * c.kept_width();
  with_teams(blocks, threads, [&](const Team& team, int thread) {
    const Image in = inputs.of(thread);
    for (Index b = team.blocks.begin; b < team.end(); ++b) {
      const Index n = b * LANES, valid = std::min<Index>(LANES, conv.images - n);
      fill(filling.by(team), in, x + n * conv.in_size(), valid);
      filling.wait(team);
      correlator.run(team, thread, in, bias, slope, to.y + n * out_size,
                     Places<uint8_t>{to.places, out_size}.from(n, 0), valid);
      filling.wait(team);
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
  bool by_windows;  // how weights have their gradients, instead of pixel by pixel
  Filling filling;

  void operator()(const Team& team, int thread, const Partial& result) const {
    const WeightGradient weights = {conv, grads.of(thread), inputs.of(thread)};
    for (Index b = team.blocks.begin; b < team.end(); ++b) {
      const Index n = b * LANES, valid = std::min<Index>(LANES, conv.images - n);
      const bool first = b == team.blocks.begin;
      const Team filler = filling.by(team);
      if (grad_x != nullptr || !by_windows) fill_gradient(filler, weights.grad, n, valid);
      if (result.weight != nullptr) fill(filler, weights.x, x + n * conv.in_size(), valid);
      filling.wait(team);
      if (by_windows)
        of_windows(team, weights.x, n, valid, result, first);
      else
        of_pixels(team, weights, result, first);
      if (grad_x != nullptr)
        correlator.run(team, thread, weights.grad, nullptr, 1.0f, grad_x + n * conv.in_size(), {},
                       valid);
      filling.wait(team);
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
  const Index reach = (conv.out_width - 1) * conv.stride_width + conv.kernel_width;
  const Image grads_image = {conv.out_channels, conv.out_height, conv.out_width,
                             wants_x ? c.left() : 0, wants_x ? c.right(conv.out_width) : 0, nullptr};
  const Image inputs_image = {conv.in_channels, conv.in_height, conv.in_width, conv.pad_width,
                              std::max<Index>(0, reach - conv.pad_width - conv.in_width), nullptr};
  const bool by_windows = places != nullptr && PooledGradient::has_code(conv);
  const Index filled = inputs_image.size() + (wants_x || !by_windows ? grads_image.size() : 0);
  const Filling filling = {planes::are_small(filled * LANES)};
  const int count = filling.images(blocks, threads);
  Images grads(grads_image, count), inputs(inputs_image, count);
  const Partial result = {to.weight, to.bias, conv.weights(), conv.out_channels};
  grads.prepare(scratch);
  inputs.prepare(scratch);
  correlator.prepare({weight, taps, conv.in_channels * taps, conv.out_channels, true},
                     conv.out_width, threads, scratch);
  float* others = scratch.take<float>(threads * (result.weight_size + result.bias_size));
  const Backward run = {conv, grad, x, places, to.x, correlator, grads, inputs,
                        by_windows, filling};
  const bool own = blocks_per_thread(blocks, threads);
  const int started = with_teams(blocks, threads, [&](const Team& team, int thread) {
    run(team, thread, result.of(own ? thread : 0, others));
  });
  for (int thread = 1; own && thread < started; ++thread) result.add(result.of(thread, others));
}

}  // namespace abele
