// All time steps of a recurrent layer, and their gradients.
//
// The caller multiplies the inputs of all steps before the loop, and computes the gradients of the
// weights after it. Samples are independent: threads that have enough of them take all steps without
// meeting. Otherwise each thread takes some columns of every product and some units of every cell.
#include <algorithm>

#include "abi.h"
#include "activations.h"
#include "images.h"
#include "parallel.h"
#include "product.h"
#include "tiles.h"

namespace abele {
namespace {

// -- cells --------------------------------------------------------------------------------------
//
// One step of some units of one sample, of `units`. GATES is the width of the products in units, KEPT that of what backward
// reads, without which products are computed in the memory of the next state. CELLS: there is a
// second state c. PASSED: a part of the gradient of h needs no product. `gates` begins with the
// products of the state. Pointers that a cell has no use for are null.

struct Lstm {  // input, forget, cell, output
  static constexpr Index GATES = 4, KEPT = 4;
  static constexpr bool CELLS = true, PASSED = false;

  template <bool biased>
  static void forward(Index units, Part own, const float* __restrict inputs, const float* __restrict bias,
                      float* __restrict gates, const float*, float* __restrict states,
                      const float* cells_before, float* cells) {
#pragma GCC ivdep
    for (Index u = own.begin; u < own.begin + own.size; ++u) {
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
  static void backward(Index units, Part own, const float* __restrict grad_states, float* __restrict grad_h,
                       float* __restrict grad_c, const float* __restrict gates, const float*,
                       const float*, const float* __restrict cells_before,
                       const float* __restrict cells, float* __restrict grad_inputs, float*) {
#pragma GCC ivdep
    for (Index u = own.begin; u < own.begin + own.size; ++u) {
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
};

struct Gru {  // reset, update, candidate; kept: the candidate's product before the candidate
  static constexpr Index GATES = 3, KEPT = 4;
  static constexpr bool CELLS = false, PASSED = true;

  template <bool biased>
  static void forward(Index units, Part own, const float* __restrict inputs, const float* __restrict bias,
                      float* __restrict gates, const float* states_before,
                      float* __restrict states, const float*, float*) {
#pragma GCC ivdep
    for (Index u = own.begin; u < own.begin + own.size; ++u) {
      float in[GATES];
      for (Index gate = 0; gate < GATES; ++gate) {
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
  static void backward(Index units, Part own, const float* __restrict grad_states, float* __restrict grad_h,
                       float*, const float* __restrict gates,
                       const float* __restrict states_before, const float*, const float*,
                       const float*, float* __restrict grad_inputs,
                       float* __restrict grad_products) {
#pragma GCC ivdep
    for (Index u = own.begin; u < own.begin + own.size; ++u) {
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
};

// NaN stays NaN. Inlined early: otherwise GCC does not vectorize the loop around it.
template <bool relu>
ABELE_INLINE float activated(float value) {
  if (relu) return value < 0.0f ? 0.0f : value;
  return tanh(value);
}
// The gradient of the argument of an activation from that of its result `state`.
template <bool relu>
ABELE_INLINE float gradient(float grad, float state) {
  if (relu) return state <= 0.0f ? 0.0f : grad;
  return grad * (1.0f - state * state);
}

template <bool relu>
struct Plain {
  static constexpr Index GATES = 1, KEPT = 0;
  static constexpr bool CELLS = false, PASSED = false;

  template <bool biased>
  static void forward(Index units, Part own, const float* __restrict inputs, const float* __restrict bias,
                      float*, const float*, float* __restrict states, const float*, float*) {
#pragma GCC ivdep
    for (Index u = own.begin; u < own.begin + own.size; ++u)
      states[u] = activated<relu>((biased ? states[u] + bias[u] : states[u]) + inputs[u]);
  }

  template <bool summed>
  static void backward(Index units, Part own, const float* __restrict grad_states, float* __restrict grad_h,
                       float*, const float*, const float*, const float* __restrict states,
                       const float*, const float*, float* __restrict grad_inputs, float*) {
#pragma GCC ivdep
    for (Index u = own.begin; u < own.begin + own.size; ++u)
      grad_inputs[u] =
          gradient<relu>(summed ? grad_h[u] + grad_states[u] : grad_h[u], states[u]);
  }
};

// -- time and threads ---------------------------------------------------------------------------

// Threads take all steps of samples of their own, so many or more, if their second-level caches hold the
// weights and no more threads could share a step. There they meet, which takes as long as so many
// multiply-adds.
constexpr Index LEAST_SAMPLES = 4, NEAR_WEIGHTS = 1 << 18, MEETING = 1 << 15;

// The index in memory of step `turn` in the order of time.
inline Index place(const AbeleRecurrent& layer, Index turn) {
  return layer.reverse ? layer.steps - 1 - turn : turn;
}
// Indices of states, which are one more than there are steps: before a step and after it.
inline Index before(const AbeleRecurrent& layer, Index step) { return step + layer.reverse; }
inline Index after(const AbeleRecurrent& layer, Index step) { return step + 1 - layer.reverse; }

// Samples `begin` to `end` of a row-major [batch, width] tensor.
struct Samples {
  Index begin, end;
  template <class T>
  T* of(T* data, Index width) const {
    return data + begin * width;
  }
};

template <class T>
inline T* offset(T* data, Index elements) {
  return data == nullptr ? nullptr : data + elements;
}

// c[samples, columns] = a[samples, inner] b, of which b is packed and rows of c are `width` apart;
// or that is added to c. Each thread of a team has whole panels of columns.
inline int multiply(const Team& team, Samples samples, Index columns, Index inner, const float* a,
                    const float* packed, float* c, Index width, bool added) {
  const Index rows = samples.end - samples.begin;
  const AbeleProduct product{1, rows, columns, inner, 0, inner, 1, 0, 0, 0, 0, width, 1, added, 0};
  return multiply_columns(product, samples.of(a, inner), packed, samples.of(c, width), team.size,
                          team.rank);
}

// The units of a thread's cells: the columns of a product that has one for each unit.
inline Part units_of(const Team& team, Index units) {
  const Part panels = part(ceil_div(units, PRODUCT_COLUMNS), team.size, team.rank);
  const Index begin = panels.begin * PRODUCT_COLUMNS;
  return {begin, std::min(units - begin, panels.size * PRODUCT_COLUMNS)};
}

// Zeros if there is nothing to copy.
inline void fill(Samples samples, Index width, float* to, const float* from) {
  const Index count = (samples.end - samples.begin) * width;
  if (from == nullptr)
    std::fill_n(samples.of(to, width), count, 0.0f);
  else
    std::copy_n(samples.of(from, width), count, samples.of(to, width));
}

template <class Cell>
struct Forward {
  static constexpr Index GATES = Cell::GATES, KEPT = Cell::KEPT;
  const AbeleRecurrent& layer;
  const float *inputs, *packed, *bias, *h, *c;
  float *states, *cells, *gates;

  void begin(Samples samples) const {
    const Index units = layer.units, first = layer.reverse * layer.steps * layer.batch * units;
    fill(samples, units, states + first, h);
    if (Cell::CELLS) fill(samples, units, cells + first * layer.kept, c);
  }

  int turn(const Team& team, Samples samples, Index turn) const {
    const Index step = place(layer, turn), units = layer.units, size = layer.batch * units;
    const Index width = GATES * units, room = KEPT ? KEPT * units : units;
    const float* from = states + before(layer, step) * size;
    float* next = states + after(layer, step) * size;
    float* to = KEPT ? gates + step * size * KEPT * layer.kept : next;
    const int status = multiply(team, samples, width, units, from, packed, to, room, false);
    team.wait();
    const float* cells_from = offset(cells, before(layer, step) * size * layer.kept);
    float* cells_to = offset(cells, after(layer, step) * size * layer.kept);
    const auto cell = bias ? Cell::template forward<true> : Cell::template forward<false>;
    const Part own = units_of(team, units);
    for (Index i = samples.begin; i < samples.end; ++i) {
      const Index at = i * units;
      cell(units, own, inputs + step * size * GATES + i * width, bias, to + i * room, from + at,
           next + at, offset(cells_from, at), offset(cells_to, at));
    }
    team.wait();
    return status;
  }
};

template <class Cell>
struct Backward {
  static constexpr Index GATES = Cell::GATES, KEPT = Cell::KEPT;
  const AbeleRecurrent& layer;
  const float *grad_states, *grad_last_h, *grad_last_c, *packed, *states, *cells, *gates;
  float *grad_inputs, *grad_products, *grad_h, *grad_c;

  void begin(Samples samples) const {
    fill(samples, layer.units, grad_h, grad_last_h);
    if (Cell::CELLS) fill(samples, layer.units, grad_c, grad_last_c);
  }

  int turn(const Team& team, Samples samples, Index turn) const {
    const Index step = place(layer, layer.steps - 1 - turn), units = layer.units;
    const Index size = layer.batch * units, width = GATES * units;
    const Index earlier = before(layer, step) * size, later = after(layer, step) * size;
    float* of_inputs = grad_inputs + step * size * GATES;
    float* of_products = offset(grad_products, step * size * GATES);
    const auto cell = grad_states ? Cell::template backward<true> : Cell::template backward<false>;
    const Part own = units_of(team, units);
    for (Index i = samples.begin; i < samples.end; ++i) {
      const Index at = i * units;
      cell(units, own, offset(grad_states, step * size + at), grad_h + at, offset(grad_c, at),
           offset(gates, (step * size + at) * KEPT), offset(states, earlier + at),
           offset(states, later + at), offset(cells, earlier + at), offset(cells, later + at),
           of_inputs + i * width, offset(of_products, i * width));
    }
    team.wait();
    const float* from = Cell::PASSED ? of_products : of_inputs;
    // The next cells read what this thread writes, and nothing of another.
    return multiply(team, samples, units, width, from, packed, grad_h, units, Cell::PASSED);
  }
};

template <class Pass>
int all_turns(const Pass& pass, const Team& team, Samples samples) {
  if (team.rank == 0) pass.begin(samples);
  team.wait();
  int status = ABELE_OK;
  for (Index turn = 0; turn < pass.layer.steps; ++turn) status |= pass.turn(team, samples, turn);
  return status;
}

template <class Pass>
int run(const Pass& pass, int threads) {
  const AbeleRecurrent& layer = pass.layer;
  const Index weights = Pass::GATES * layer.units * layer.units;
  int status = ABELE_OK;
  const auto steps = [&](const Team& team, Samples samples) {
    const int own = all_turns(pass, team, samples);
    if (own) __atomic_fetch_or(&status, own, __ATOMIC_RELAXED);
  };
  const Index most = std::min(layer.batch * weights / MEETING, ceil_div(layer.units, PRODUCT_COLUMNS));
  const int team = static_cast<int>(std::clamp<Index>(most, 1, threads));
  const int apart = static_cast<int>(std::min<Index>(threads, layer.batch / LEAST_SAMPLES));
  if (weights <= NEAR_WEIGHTS && apart >= team)
    share<1 << 30>(layer.batch, apart,
                   [&](Index begin, Index end) { steps({0, 1, {}}, {begin, end}); });
  else
    with_teams(1, team, [&](const Team& own, int) { steps(own, {0, layer.batch}); });
  return status;
}

// Calls `then` with a cell of a layer's kind.
template <class Then>
int with_cell(const AbeleRecurrent& layer, const Then& then) {
  switch (layer.kind) {
    case ABELE_LSTM: return then(Lstm{});
    case ABELE_GRU: return then(Gru{});
    case ABELE_RNN_TANH: return then(Plain<false>{});
    case ABELE_RNN_RELU: return then(Plain<true>{});
    default: return ABELE_NO_CODE;
  }
}

}  // namespace
}  // namespace abele

int abele_recurrent(const AbeleRecurrent* layer, const float* inputs, const float* packed,
                    const float* bias, const float* h, const float* c, float* states,
                    float* cells, float* gates, int threads) {
  return abele::with_cell(*layer, [&](auto cell) {
    const abele::Forward<decltype(cell)> pass{*layer, inputs, packed, bias, h,
                                              c,      states, cells,  gates};
    return abele::run(pass, threads);
  });
}

int abele_recurrent_backward(const AbeleRecurrent* layer, const float* grad_states,
                             const float* grad_last_h, const float* grad_last_c,
                             const float* packed, const float* states, const float* cells,
                             const float* gates, float* grad_inputs, float* grad_products,
                             float* grad_h, float* grad_c, int threads) {
  return abele::with_cell(*layer, [&](auto cell) {
    const abele::Backward<decltype(cell)> pass{*layer, grad_states, grad_last_h, grad_last_c,
                                               packed, states,      cells,       gates,
                                               grad_inputs, grad_products, grad_h, grad_c};
    return abele::run(pass, threads);
  });
}
