// SGD with momentum over many tensors in one pass over memory.
//
// The arithmetic is that of update_rules.py, operation by operation, in float32.
#include "pieces.h"

namespace {

template <bool DECAYS, bool NESTEROV>
void update(const AbeleSgd& sgd, const AbeleSgdTensor& t, int64_t begin, int64_t end) {
  const float rate = static_cast<float>(sgd.rate), momentum = static_cast<float>(sgd.momentum);
  const float rest = static_cast<float>(sgd.rest), decay = static_cast<float>(sgd.decay);
  float *p = t.param, *velocity = t.velocity;
  const float* grad = t.grad;
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) {
    const float g = DECAYS ? grad[i] + decay * p[i] : grad[i];
    const float v = velocity[i] * momentum + rest * g;
    velocity[i] = v;
    p[i] -= rate * (NESTEROV ? g + momentum * v : v);
  }
}

}  // namespace

int abele_sgd(const AbeleSgd* sgd, const AbeleSgdTensor* tensors, int64_t count, int threads) {
  const bool decays = sgd->decay != 0, nesterov = sgd->nesterov != 0;
  const auto run = decays ? (nesterov ? update<true, true> : update<true, false>)
                          : (nesterov ? update<false, true> : update<false, false>);
  abele::for_each_piece(tensors, count, threads,
                        [&](const AbeleSgdTensor& tensor, int64_t begin, int64_t end) {
                          run(*sgd, tensor, begin, end);
                        });
  return ABELE_OK;
}
