// All time steps of an LSTM, and their gradients.
#include "activations.h"
#include "recurrent.h"

namespace abele {
namespace {

// Of a sample: input, forget, cell, output.
constexpr Index GATES_OF_LSTM = 4;

template <bool biased>
void forward_cell(Index units, const float* __restrict inputs, const float* __restrict bias,
                  float* __restrict gates, const float* cells_before, float* cells,
                  float* __restrict states) {
#pragma GCC ivdep
  for (Index u = 0; u < units; ++u) {
    float in[GATES_OF_LSTM];
    for (Index gate = 0; gate < GATES_OF_LSTM; ++gate) {
      const Index at = gate * units + u;
      in[gate] = (biased ? gates[at] + bias[at] : gates[at]) + inputs[at];
    }
    const float entry = sigmoid(in[0]), forget = sigmoid(in[1]);
    const float cell = tanh(in[2]), output = sigmoid(in[3]);
    gates[u] = entry, gates[units + u] = forget;
    gates[2 * units + u] = cell, gates[3 * units + u] = output;
    const float c = forget * cells_before[u] + entry * cell;
    cells[u] = c;
    states[u] = output * tanh(c);
  }
}

// `grad_h` and `grad_c` are those of the state after a step; `grad_c` becomes that before it.
template <bool summed>
void backward_cell(Index units, const float* __restrict grad_states, const float* __restrict grad_h,
                   float* __restrict grad_c, const float* __restrict gates,
                   const float* __restrict cells_before, const float* __restrict cells,
                   float* __restrict grad_inputs) {
#pragma GCC ivdep
  for (Index u = 0; u < units; ++u) {
    const float entry = gates[u], forget = gates[units + u];
    const float cell = gates[2 * units + u], output = gates[3 * units + u];
    const float bent = tanh(cells[u]);
    const float h = summed ? grad_h[u] + grad_states[u] : grad_h[u];
    const float c = grad_c[u] + h * output * (1.0f - bent * bent);
    grad_inputs[u] = c * cell * ((1.0f - entry) * entry);
    grad_inputs[units + u] = c * cells_before[u] * ((1.0f - forget) * forget);
    grad_inputs[2 * units + u] = c * entry * (1.0f - cell * cell);
    grad_inputs[3 * units + u] = h * bent * ((1.0f - output) * output);
    grad_c[u] = c * forget;
  }
}

struct LstmForward {
  static constexpr Index GATES = GATES_OF_LSTM;
  const AbeleRecurrent& layer;
  const float *inputs, *packed, *bias, *h, *c;
  float *states, *cells, *gates;

  void begin(Samples samples) const {
    const Index units = layer.units, first = layer.reverse * layer.steps * layer.batch * units;
    fill(samples, units, states + first, h);
    fill(samples, units, cells + first * layer.kept, c);
  }

  int turn(Samples samples, Index turn, int threads) const {
    const Index step = place(layer, turn), units = layer.units, size = layer.batch * units;
    const Index width = GATES * units;
    float* to = gates + step * size * GATES * layer.kept;
    const float* from = states + before(layer, step) * size;
    const int status = multiply(samples, width, units, from, packed, to, width, false, threads);
    const auto cell = bias == nullptr ? forward_cell<false> : forward_cell<true>;
    each_sample(samples, threads, [=, this](Index i) {
      const Index at = i * units;
      cell(units, inputs + step * size * GATES + i * width, bias, to + i * width,
           cells + before(layer, step) * size * layer.kept + at,
           cells + after(layer, step) * size * layer.kept + at,
           states + after(layer, step) * size + at);
    });
    return status;
  }
};

struct LstmBackward {
  static constexpr Index GATES = GATES_OF_LSTM;
  const AbeleRecurrent& layer;
  const float *grad_states, *grad_last_h, *grad_last_c, *packed, *cells, *gates;
  float *grad_inputs, *grad_h, *grad_c;

  void begin(Samples samples) const {
    fill(samples, layer.units, grad_h, grad_last_h);
    fill(samples, layer.units, grad_c, grad_last_c);
  }

  int turn(Samples samples, Index turn, int threads) const {
    const Index step = place(layer, layer.steps - 1 - turn), units = layer.units;
    const Index size = layer.batch * units, width = GATES * units;
    float* to = grad_inputs + step * size * GATES;
    const auto cell = grad_states == nullptr ? backward_cell<false> : backward_cell<true>;
    each_sample(samples, threads, [=, this](Index i) {
      const Index at = i * units;
      cell(units, grad_states ? grad_states + step * size + at : nullptr, grad_h + at, grad_c + at,
           gates + step * size * GATES + i * width, cells + before(layer, step) * size + at,
           cells + after(layer, step) * size + at, to + i * width);
    });
    return multiply(samples, units, width, to, packed, grad_h, units, false, threads);
  }
};

}  // namespace
}  // namespace abele

int abele_lstm(const AbeleRecurrent* layer, const float* inputs, const float* packed,
               const float* bias, const float* h, const float* c, float* states, float* cells,
               float* gates, int threads) {
  return abele::run(
      abele::LstmForward{*layer, inputs, packed, bias, h, c, states, cells, gates}, threads);
}

int abele_lstm_backward(const AbeleRecurrent* layer, const float* grad_states,
                        const float* grad_last_h, const float* grad_last_c, const float* packed,
                        const float* cells, const float* gates, float* grad_inputs, float* grad_h,
                        float* grad_c, int threads) {
  return abele::run(abele::LstmBackward{*layer, grad_states, grad_last_h, grad_last_c, packed,
                                        cells, gates, grad_inputs, grad_h, grad_c},
                    threads);
}
