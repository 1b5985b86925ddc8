// The frame of recurrent layers: the order of time, threads, and the product with the state before.
//
// What steps do not wait for is a product before (inputs) or after (weights) all of them and belongs
// to the caller. Samples know nothing of each other: threads that have enough of them take all steps
// without meeting.
#pragma once
#include <algorithm>

#include "abi.h"
#include "parallel.h"

namespace abele {
namespace {

// A thread takes all steps of its samples if it has so many, and weights that its second-level cache
// holds; otherwise threads share the columns of each step's product.
constexpr Index LEAST_SAMPLES = 4, NEAR_WEIGHTS = 1 << 18;

// Where step `turn` in the order of time lies.
inline Index place(const AbeleRecurrent& layer, Index turn) {
  return layer.reverse ? layer.steps - 1 - turn : turn;
}
// Of states, which are one more than there are steps: before a step and after it.
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

// c[samples, columns] = a[samples, inner] b, of which b is packed and rows of c are `width` apart;
// or that is added to c.
inline int multiply(Samples samples, Index columns, Index inner, const float* a,
                    const float* packed, float* c, Index width, bool added, int threads) {
  const Index rows = samples.end - samples.begin;
  const AbeleProduct product{1, rows, columns, inner, 0, inner, 1, 0, 0, 0, 0, width, 1, added, 0};
  return abele_product(&product, samples.of(a, inner), packed, samples.of(c, width), threads);
}

// The samples of a step, shared by threads that meet after it.
template <class Cell>
void each_sample(Samples samples, int threads, Cell cell) {
  share<1 << 30>(samples.end - samples.begin, threads, [=](Index begin, Index end) {
    for (Index i = samples.begin + begin; i < samples.begin + end; ++i) cell(i);
  });
}

// Zeros if there is nothing to copy.
inline void fill(Samples samples, Index width, float* to, const float* from) {
  const Index count = (samples.end - samples.begin) * width;
  if (from == nullptr)
    std::fill_n(samples.of(to, width), count, 0.0f);
  else
    std::copy_n(samples.of(from, width), count, samples.of(to, width));
}

template <class Pass>
int all_turns(const Pass& pass, Samples samples, int threads) {
  pass.begin(samples);
  int status = ABELE_OK;
  for (Index turn = 0; turn < pass.layer.steps; ++turn) status |= pass.turn(samples, turn, threads);
  return status;
}

// A pass over all time steps of a layer with so many GATES.
template <class Pass>
int run(const Pass& pass, int threads) {
  const AbeleRecurrent& layer = pass.layer;
  const Index weights = Pass::GATES * layer.units * layer.units;
  const bool apart = weights <= NEAR_WEIGHTS && layer.batch >= LEAST_SAMPLES * threads;
  const Samples all{0, layer.batch};
  if (!apart) return all_turns(pass, all, abele_threads(0, 2 * layer.batch * weights, threads));
  int status = ABELE_OK;
  share<1 << 30>(layer.batch, threads, [&](Index begin, Index end) {
    const int own = all_turns(pass, {begin, end}, 1);
    if (own) __atomic_fetch_or(&status, own, __ATOMIC_RELAXED);
  });
  return status;
}

}  // namespace
}  // namespace abele
