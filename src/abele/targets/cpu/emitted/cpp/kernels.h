// Calls of kernels that are compiled once per machine, which take functions or arrays of numbers.
#pragma once

#include "abi.h"

namespace abele {

// Of `threads`, as many as have enough to do.
inline int at_most(int most, int threads) { return most < threads ? most : threads; }

// Calls loop(c, begin, end) for turns of a loop over c, `turns` for each row: c is where the product
// would begin if all of it were in memory.
template <Index turns, class Loop>
inline int multiply_by_rows(const AbeleProduct& product, const void* a, const void* b,
                            int threads, Loop loop) {
  struct Rows {
    Loop& loop;
    Index step;
  } rows{loop, product.c_row};
  const auto then = [](void* context, const float* c, int64_t first, int64_t count) {
    const auto& [loop, step] = *static_cast<Rows*>(context);
    const auto address = reinterpret_cast<uintptr_t>(c) - first * step * sizeof(float);
    loop(reinterpret_cast<const float*>(address), first * turns, (first + count) * turns);
  };
  return abele_product_by_rows(&product, a, b, then, &rows, threads);
}

// Heads lie as `steps` say, one for each tensor that follows but the logarithms.
template <int tensors>
inline int attention(const AbeleAttention& all, const AbeleSteps (&steps)[tensors], const void* q,
                     const void* k, const void* v, void* y, float* logarithms, int threads) {
  return abele_attention(&all, steps, q, k, v, y, logarithms, threads);
}
template <int tensors>
inline int attention_backward(const AbeleAttention& all, const AbeleSteps (&steps)[tensors],
                              const void* grad, const void* q, const void* k, const void* v,
                              const void* y, const float* logarithms, void* grad_q, void* grad_k,
                              void* grad_v, int threads) {
  return abele_attention_backward(&all, steps, grad, q, k, v, y, logarithms, grad_q, grad_k,
                                  grad_v, threads);
}

}  // namespace abele
