// The kernels that are compiled once per machine; first what they are told of sizes, by reference.
#pragma once

#include "abi.h"

namespace abele {

// Of `threads`, as many as have enough to do.
inline int at_most(int most, int threads) { return most < threads ? most : threads; }

inline int convolve(const AbeleConv& conv, const float* x, const float* weight, const float* bias,
                    float* y, int threads) {
  return abele_conv_forward(&conv, x, weight, bias, y, abele_conv_threads(&conv, threads));
}
inline int convolve_backward(const AbeleConv& conv, const float* grad, const float* x,
                             const float* weight, float* grad_x, float* grad_weight,
                             float* grad_bias, int threads) {
  return abele_conv_backward(&conv, grad, x, weight, grad_x, grad_weight, grad_bias,
                             abele_conv_threads(&conv, threads));
}

inline int convolve_and_pool(const AbeleConv& conv, const float* x, const float* weight,
                             const float* bias, float* y, uint8_t* places, int threads) {
  return abele_conv_pool(&conv, x, weight, bias, y, places, abele_conv_threads(&conv, threads));
}
inline int convolve_and_pool_backward(const AbeleConv& conv, const float* grad,
                                      const uint8_t* places, const float* x, const float* weight,
                                      float* grad_x, float* grad_weight, float* grad_bias,
                                      int threads) {
  return abele_conv_pool_backward(&conv, grad, places, x, weight, grad_x, grad_weight, grad_bias,
                                  abele_conv_threads(&conv, threads));
}

inline int depthwise(const AbeleDepthwise& conv, const float* x, const float* weight,
                     const float* bias, float* y, int threads) {
  return abele_depthwise_forward(&conv, x, weight, bias, y, threads);
}
inline int depthwise_backward(const AbeleDepthwise& conv, const float* grad, const float* x,
                              const float* weight, float* grad_x, float* grad_weight,
                              float* grad_bias, int threads) {
  return abele_depthwise_backward(&conv, grad, x, weight, grad_x, grad_weight, grad_bias, threads);
}

inline int pool(const AbelePool& pool, const float* x, float* y, uint8_t* places, int threads) {
  return abele_max_pool(&pool, x, y, places, nullptr, threads);
}
inline int pool(const AbelePool& pool, const float* x, float* y, int64_t* indices, int threads) {
  return abele_max_pool(&pool, x, y, nullptr, indices, threads);
}
inline int pool_backward(const AbelePool& pool, const float* grad, const uint8_t* places,
                         float* grad_x, int threads) {
  return abele_max_pool_backward(&pool, grad, places, grad_x, threads);
}

inline int multiply(const AbeleProduct& product, const float* a, const float* b, float* c,
                    int threads) {
  return abele_product(&product, a, b, c, threads);
}
// Calls loop(c, begin, end) for turns of a loop over c, `turns` for each row: c is where the product
// would begin if all of it were in memory.
template <Index turns, class Loop>
inline int multiply_by_rows(const AbeleProduct& product, const float* a, const float* b,
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
inline int pack(const AbeleProduct& product, const float* b, float* packed, int threads) {
  return abele_product_pack(&product, b, packed, threads);
}

inline int recurrent(const AbeleRecurrent& layer, const float* inputs, const float* packed,
                     const float* bias, const float* h, const float* c, float* states,
                     float* cells, float* gates, int threads) {
  return abele_recurrent(&layer, inputs, packed, bias, h, c, states, cells, gates, threads);
}
inline int recurrent_backward(const AbeleRecurrent& layer, const float* grad_states,
                              const float* grad_last_h, const float* grad_last_c,
                              const float* packed, const float* states, const float* cells,
                              const float* gates, float* grad_inputs, float* grad_products,
                              float* grad_h, float* grad_c, int threads) {
  return abele_recurrent_backward(&layer, grad_states, grad_last_h, grad_last_c, packed, states,
                                  cells, gates, grad_inputs, grad_products, grad_h, grad_c,
                                  threads);
}

// Heads lie as `steps` say, one for each tensor that follows but the logarithms.
template <int tensors>
inline int attention(const AbeleAttention& all, const AbeleSteps (&steps)[tensors], const float* q,
                     const float* k, const float* v, float* y, float* logarithms, int threads) {
  return abele_attention(&all, steps, q, k, v, y, logarithms, threads);
}
template <int tensors>
inline int attention_backward(const AbeleAttention& all, const AbeleSteps (&steps)[tensors],
                              const float* grad, const float* q, const float* k, const float* v,
                              const float* y, const float* logarithms, float* grad_q,
                              float* grad_k, float* grad_v, int threads) {
  return abele_attention_backward(&all, steps, grad, q, k, v, y, logarithms, grad_q, grad_k,
                                  grad_v, threads);
}

}  // namespace abele
