// All time steps of a layer whose next state is an activation of its inputs and its state, and their
// gradients.
#include "activations.h"
#include "recurrent.h"

namespace abele {
namespace {

// What is no number stays so. Inlined early: else GCC would make no vectors of the loop around it.
template <bool relu>
ABELE_INLINE float activated(float value) {
  if (relu) return value < 0.0f ? 0.0f : value;
  return tanh(value);
}
// The gradient of what was activated, from that of `state`, which came of it.
template <bool relu>
ABELE_INLINE float gradient(float grad, float state) {
  if (relu) return state <= 0.0f ? 0.0f : grad;
  return grad * (1.0f - state * state);
}

// `states` begins as the products of the state before.
template <bool biased, bool relu>
void forward_cell(Index units, const float* __restrict inputs, const float* __restrict bias,
                  float* __restrict states) {
#pragma GCC ivdep
  for (Index u = 0; u < units; ++u)
    states[u] = activated<relu>((biased ? states[u] + bias[u] : states[u]) + inputs[u]);
}

template <bool summed, bool relu>
void backward_cell(Index units, const float* __restrict grad_states, const float* __restrict grad_h,
                   const float* __restrict states, float* __restrict grad_inputs) {
#pragma GCC ivdep
  for (Index u = 0; u < units; ++u)
    grad_inputs[u] =
        gradient<relu>(summed ? grad_h[u] + grad_states[u] : grad_h[u], states[u]);
}

template <bool relu>
struct RnnForward {
  static constexpr Index GATES = 1;
  const AbeleRecurrent& layer;
  const float *inputs, *packed, *bias, *h;
  float* states;

  void begin(Samples samples) const {
    const Index units = layer.units;
    fill(samples, units, states + layer.reverse * layer.steps * layer.batch * units, h);
  }

  int turn(Samples samples, Index turn, int threads) const {
    const Index step = place(layer, turn), units = layer.units, size = layer.batch * units;
    const float* from = states + before(layer, step) * size;
    float* to = states + after(layer, step) * size;
    const int status = multiply(samples, units, units, from, packed, to, units, false, threads);
    const auto cell = bias == nullptr ? forward_cell<false, relu> : forward_cell<true, relu>;
    each_sample(samples, threads, [=, this](Index i) {
      cell(units, inputs + step * size + i * units, bias, to + i * units);
    });
    return status;
  }
};

template <bool relu>
struct RnnBackward {
  static constexpr Index GATES = 1;
  const AbeleRecurrent& layer;
  const float *grad_states, *grad_last_h, *packed, *states;
  float *grad_inputs, *grad_h;

  void begin(Samples samples) const { fill(samples, layer.units, grad_h, grad_last_h); }

  int turn(Samples samples, Index turn, int threads) const {
    const Index step = place(layer, layer.steps - 1 - turn), units = layer.units;
    const Index size = layer.batch * units;
    float* to = grad_inputs + step * size;
    const auto cell = grad_states == nullptr ? backward_cell<false, relu> : backward_cell<true, relu>;
    each_sample(samples, threads, [=, this](Index i) {
      const Index at = i * units;
      cell(units, grad_states ? grad_states + step * size + at : nullptr, grad_h + at,
           states + after(layer, step) * size + at, to + at);
    });
    return multiply(samples, units, units, to, packed, grad_h, units, false, threads);
  }
};

}  // namespace
}  // namespace abele

int abele_rnn(const AbeleRecurrent* layer, const float* inputs, const float* packed,
              const float* bias, const float* h, float* states, int threads) {
  using namespace abele;
  return layer->relu ? run(RnnForward<true>{*layer, inputs, packed, bias, h, states}, threads)
                     : run(RnnForward<false>{*layer, inputs, packed, bias, h, states}, threads);
}

int abele_rnn_backward(const AbeleRecurrent* layer, const float* grad_states,
                       const float* grad_last_h, const float* packed, const float* states,
                       float* grad_inputs, float* grad_h, int threads) {
  using namespace abele;
  return layer->relu ? run(RnnBackward<true>{*layer, grad_states, grad_last_h, packed, states,
                                             grad_inputs, grad_h},
                           threads)
                     : run(RnnBackward<false>{*layer, grad_states, grad_last_h, packed, states,
                                              grad_inputs, grad_h},
                           threads);
}
