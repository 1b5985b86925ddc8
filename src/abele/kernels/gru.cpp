// All time steps of a GRU, and their gradients.
#include "activations.h"
#include "recurrent.h"

namespace abele {
namespace {

// Of a sample: reset, update, candidate. What backward reads has the candidate's product with the
// state between update and candidate.
constexpr Index GATES_OF_GRU = 3, KEPT_OF_GRU = 4;

// `gates` begins with the products of the state.
template <bool biased>
void forward_cell(Index units, const float* __restrict inputs, const float* __restrict bias,
                  float* __restrict gates, const float* states_before, float* __restrict states) {
#pragma GCC ivdep
  for (Index u = 0; u < units; ++u) {
    float in[GATES_OF_GRU];
    for (Index gate = 0; gate < GATES_OF_GRU; ++gate) {
      const Index at = gate * units + u;
      in[gate] = biased ? gates[at] + bias[at] : gates[at];
    }
    const float reset = sigmoid(in[0] + inputs[u]), update = sigmoid(in[1] + inputs[units + u]);
    const float candidate = tanh(in[2] * reset + inputs[2 * units + u]);
    gates[u] = reset, gates[units + u] = update;
    gates[2 * units + u] = in[2], gates[3 * units + u] = candidate;
    states[u] = (states_before[u] - candidate) * update + candidate;
  }
}

// `grad_h` is that of the state after a step, and becomes what of it goes to the state before
// without a product.
template <bool summed>
void backward_cell(Index units, const float* __restrict grad_states, float* __restrict grad_h,
                   const float* __restrict gates, const float* __restrict states_before,
                   float* __restrict grad_inputs, float* __restrict grad_products) {
#pragma GCC ivdep
  for (Index u = 0; u < units; ++u) {
    const float reset = gates[u], update = gates[units + u];
    const float inner = gates[2 * units + u], candidate = gates[3 * units + u];
    const float h = summed ? grad_h[u] + grad_states[u] : grad_h[u];
    const float passed = h * update;
    const float of_candidate = (h - passed) * (1.0f - candidate * candidate);
    const float of_reset = of_candidate * inner * ((1.0f - reset) * reset);
    const float of_update = h * (states_before[u] - candidate) * ((1.0f - update) * update);
    grad_inputs[u] = grad_products[u] = of_reset;
    grad_inputs[units + u] = grad_products[units + u] = of_update;
    grad_inputs[2 * units + u] = of_candidate;
    grad_products[2 * units + u] = of_candidate * reset;
    grad_h[u] = passed;
  }
}

struct GruForward {
  static constexpr Index GATES = GATES_OF_GRU;
  const AbeleRecurrent& layer;
  const float *inputs, *packed, *bias, *h;
  float *states, *gates;

  void begin(Samples samples) const {
    const Index units = layer.units;
    fill(samples, units, states + layer.reverse * layer.steps * layer.batch * units, h);
  }

  int turn(Samples samples, Index turn, int threads) const {
    const Index step = place(layer, turn), units = layer.units, size = layer.batch * units;
    const Index width = GATES * units, kept = KEPT_OF_GRU * units;
    float* to = gates + step * size * KEPT_OF_GRU * layer.kept;
    const float* from = states + before(layer, step) * size;
    const int status = multiply(samples, width, units, from, packed, to, kept, false, threads);
    const auto cell = bias == nullptr ? forward_cell<false> : forward_cell<true>;
    each_sample(samples, threads, [=, this](Index i) {
      cell(units, inputs + step * size * GATES + i * width, bias, to + i * kept, from + i * units,
           states + after(layer, step) * size + i * units);
    });
    return status;
  }
};

struct GruBackward {
  static constexpr Index GATES = GATES_OF_GRU;
  const AbeleRecurrent& layer;
  const float *grad_states, *grad_last_h, *packed, *states, *gates;
  float *grad_inputs, *grad_products, *grad_h;

  void begin(Samples samples) const { fill(samples, layer.units, grad_h, grad_last_h); }

  int turn(Samples samples, Index turn, int threads) const {
    const Index step = place(layer, layer.steps - 1 - turn), units = layer.units;
    const Index size = layer.batch * units, width = GATES * units;
    float *of_inputs = grad_inputs + step * size * GATES, *of = grad_products + step * size * GATES;
    const auto cell = grad_states == nullptr ? backward_cell<false> : backward_cell<true>;
    each_sample(samples, threads, [=, this](Index i) {
      const Index at = i * units;
      cell(units, grad_states ? grad_states + step * size + at : nullptr, grad_h + at,
           gates + step * size * KEPT_OF_GRU + i * KEPT_OF_GRU * units,
           states + before(layer, step) * size + at, of_inputs + i * width, of + i * width);
    });
    return multiply(samples, units, width, of, packed, grad_h, units, true, threads);
  }
};

}  // namespace
}  // namespace abele

int abele_gru(const AbeleRecurrent* layer, const float* inputs, const float* packed,
              const float* bias, const float* h, float* states, float* gates, int threads) {
  return abele::run(abele::GruForward{*layer, inputs, packed, bias, h, states, gates}, threads);
}

int abele_gru_backward(const AbeleRecurrent* layer, const float* grad_states,
                       const float* grad_last_h, const float* packed, const float* states,
                       const float* gates, float* grad_inputs, float* grad_products, float* grad_h,
                       int threads) {
  return abele::run(abele::GruBackward{*layer, grad_states, grad_last_h, packed, states, gates,
                                       grad_inputs, grad_products, grad_h},
                    threads);
}
