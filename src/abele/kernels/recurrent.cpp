// All time steps of an LSTM, and their gradients.
//
// What steps do not wait for is a product before (inputs) or after (weights) all of them and belongs
// to the caller. Here are the products with the state before, and what becomes of them. Samples know
// nothing of each other: threads that have enough of them take all steps without meeting.
#include <algorithm>

#include "abi.h"
#include "activations.h"
#include "parallel.h"

namespace abele {
namespace {

// Of a sample: input, forget, cell, output.
constexpr Index GATES = 4;
// A thread takes all steps of its samples if it has so many, and weights that its second-level cache
// holds; otherwise threads share the columns of each step's product.
constexpr Index LEAST_SAMPLES = 4, NEAR_WEIGHTS = 1 << 18;

Index gates_of(const AbeleLstm& lstm) { return GATES * lstm.units; }
// Where step `turn` in the order of time lies.
Index place(const AbeleLstm& lstm, Index turn) {
  return lstm.reverse ? lstm.steps - 1 - turn : turn;
}
// Of states, which are one more than there are steps: before a step and after it.
Index before(const AbeleLstm& lstm, Index step) { return step + lstm.reverse; }
Index after(const AbeleLstm& lstm, Index step) { return step + 1 - lstm.reverse; }

// Samples `begin` to `end` of a row-major [batch, width] tensor.
struct Samples {
  Index begin, end;
  template <class T>
  T* of(T* data, Index width) const {
    return data + begin * width;
  }
};

// c[samples, columns] = a[samples, inner] b, of which b is packed.
int multiply(Samples samples, Index columns, Index inner, const float* a, const float* packed,
             float* c, int threads) {
  const Index rows = samples.end - samples.begin;
  const AbeleProduct product{1, rows, columns, inner, 0, inner, 1, 0, 0, 0, 0, columns, 1, 0, 0};
  return abele_product(&product, samples.of(a, inner), packed, samples.of(c, columns), threads);
}

template <bool biased>
void forward_cell(Index units, const float* __restrict inputs, const float* __restrict bias,
                  float* __restrict gates, const float* cells_before, float* cells,
                  float* __restrict states) {
#pragma GCC ivdep
  for (Index u = 0; u < units; ++u) {
    float in[GATES];
    for (Index gate = 0; gate < GATES; ++gate) {
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

struct Forward {
  const AbeleLstm& lstm;
  const float *inputs, *packed, *bias, *h, *c;
  float *states, *cells, *gates;

  void begin(Samples samples) const {
    const Index units = lstm.units, first = lstm.reverse * lstm.steps;
    const Index count = (samples.end - samples.begin) * units, size = lstm.batch * units;
    std::copy_n(samples.of(h, units), count, samples.of(states + first * size, units));
    std::copy_n(samples.of(c, units), count, samples.of(cells + first * size * lstm.kept, units));
  }

  int turn(Samples samples, Index turn, int threads) const {
    const Index step = place(lstm, turn), size = lstm.batch * lstm.units;
    const Index width = gates_of(lstm);
    float* to = gates + step * size * GATES * lstm.kept;
    const float* from = states + before(lstm, step) * size;
    const int status = multiply(samples, width, lstm.units, from, packed, to, threads);
    const auto cell = bias == nullptr ? forward_cell<false> : forward_cell<true>;
    const auto run = [=, this](Index begin, Index end) {
      for (Index i = samples.begin + begin; i < samples.begin + end; ++i) {
        const Index at = i * lstm.units;
        cell(lstm.units, inputs + step * size * GATES + i * width, bias, to + i * width,
             cells + before(lstm, step) * size * lstm.kept + at,
             cells + after(lstm, step) * size * lstm.kept + at,
             states + after(lstm, step) * size + at);
      }
    };
    share<1 << 30>(samples.end - samples.begin, threads, run);
    return status;
  }
};

struct Backward {
  const AbeleLstm& lstm;
  const float *grad_states, *grad_last_h, *grad_last_c, *packed, *cells, *gates;
  float *grad_inputs, *grad_h, *grad_c;

  void begin(Samples samples) const {
    const Index units = lstm.units, count = (samples.end - samples.begin) * units;
    fill(samples.of(grad_h, units), grad_last_h ? samples.of(grad_last_h, units) : nullptr, count);
    fill(samples.of(grad_c, units), grad_last_c ? samples.of(grad_last_c, units) : nullptr, count);
  }
  static void fill(float* to, const float* from, Index count) {
    if (from == nullptr)
      std::fill_n(to, count, 0.0f);
    else
      std::copy_n(from, count, to);
  }

  int turn(Samples samples, Index turn, int threads) const {
    const Index step = place(lstm, lstm.steps - 1 - turn), size = lstm.batch * lstm.units;
    const Index width = gates_of(lstm);
    float* to = grad_inputs + step * size * GATES;
    const auto cell = grad_states == nullptr ? backward_cell<false> : backward_cell<true>;
    const auto run = [=, this](Index begin, Index end) {
      for (Index i = samples.begin + begin; i < samples.begin + end; ++i) {
        const Index at = i * lstm.units;
        cell(lstm.units, grad_states ? grad_states + step * size + at : nullptr, grad_h + at,
             grad_c + at, gates + step * size * GATES + i * width,
             cells + before(lstm, step) * size + at, cells + after(lstm, step) * size + at,
             to + i * width);
      }
    };
    share<1 << 30>(samples.end - samples.begin, threads, run);
    return multiply(samples, lstm.units, width, to, packed, grad_h, threads);
  }
};

template <class Pass>
int all_turns(const Pass& pass, Samples samples, int threads) {
  pass.begin(samples);
  int status = ABELE_OK;
  for (Index turn = 0; turn < pass.lstm.steps; ++turn) status |= pass.turn(samples, turn, threads);
  return status;
}

template <class Pass>
int run(const Pass& pass, int threads) {
  const AbeleLstm& lstm = pass.lstm;
  const Index weights = gates_of(lstm) * lstm.units;
  const bool apart = weights <= NEAR_WEIGHTS && lstm.batch >= LEAST_SAMPLES * threads;
  const Samples all{0, lstm.batch};
  if (!apart) return all_turns(pass, all, abele_threads(0, 2 * lstm.batch * weights, threads));
  int status = ABELE_OK;
  share<1 << 30>(lstm.batch, threads, [&](Index begin, Index end) {
    const int own = all_turns(pass, {begin, end}, 1);
    if (own) __atomic_fetch_or(&status, own, __ATOMIC_RELAXED);
  });
  return status;
}

}  // namespace
}  // namespace abele

int abele_lstm(const AbeleLstm* lstm, const float* inputs, const float* packed, const float* bias,
               const float* h, const float* c, float* states, float* cells, float* gates,
               int threads) {
  return abele::run(
      abele::Forward{*lstm, inputs, packed, bias, h, c, states, cells, gates}, threads);
}

int abele_lstm_backward(const AbeleLstm* lstm, const float* grad_states, const float* grad_last_h,
                        const float* grad_last_c, const float* packed, const float* cells,
                        const float* gates, float* grad_inputs, float* grad_h, float* grad_c,
                        int threads) {
  return abele::run(abele::Backward{*lstm, grad_states, grad_last_h, grad_last_c, packed, cells,
                                    gates, grad_inputs, grad_h, grad_c},
                    threads);
}
