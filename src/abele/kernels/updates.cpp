// Adam (arXiv 1412.6980), and SGD with momentum, over many tensors in one pass over memory.
//
// The arithmetic is that of update_rules.py, operation by operation, in float32; Adam's corrections
// are float64, and numbers of 16 bits are converted where they are read and written.
#include <algorithm>

#include "abi.h"
#include "half.h"
#include "threads.h"

namespace {

// Calls run(tensor, begin, end) for each piece; threads share the pieces, wherever tensors begin. Of more
// than two, another one has the remainder of each tensor: small tensors are one piece.
template <class Tensor, class Run>
int for_each_piece(const Tensor* tensors, int64_t count, int threads, const Run& run) {
  constexpr int64_t PIECE = 16384;
  abele::on_threads(threads, [&](int thread, int team) {
    for (int64_t k = 0; k < count; ++k) {
      const int64_t size = tensors[k].size;
      const int64_t turn = team > 2 ? (thread + k) % team : thread;
      const auto [first, own] = abele::part((size + PIECE - 1) / PIECE, team, turn);
      for (int64_t piece = first; piece < first + own; ++piece)
        run(tensors[k], piece * PIECE, std::min(size, (piece + 1) * PIECE));
    }
  });
  return ABELE_OK;
}

template <class Param, class Grad>
void adam_piece(const AbeleAdam& adam, const AbeleAdamTensor& t, double rate, int64_t begin,
                int64_t end) {
  const double rise = 1.0 - std::pow(adam.beta1, *t.step);
  const double root = std::sqrt(1.0 - std::pow(adam.beta2, *t.step));
  const float lr = static_cast<float>(rate / rise), correction = static_cast<float>(root);
  const float weight = static_cast<float>(1.0 - adam.beta1), eps = static_cast<float>(adam.eps);
  const float beta2 = static_cast<float>(adam.beta2), rest = static_cast<float>(1.0 - adam.beta2);
  const float left = static_cast<float>(1.0 - rate * adam.decay);
  const float scale = static_cast<float>(adam.scale);
  Param* p = static_cast<Param*>(t.param);
  const Grad* grad = static_cast<const Grad*>(t.grad);
  float *first = t.first, *second = t.second;
  const bool near = weight < 0.5f;
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) {
    const float g = static_cast<float>(grad[i]) / scale, old = first[i], difference = g - old;
    const float m = near ? old + weight * difference : g - difference * (1.0f - weight);
    const float v = second[i] * beta2 + (g * rest) * g;
    first[i] = m;
    second[i] = v;
    const float kept = static_cast<float>(p[i]) * left;
    p[i] = Param(kept - (m * lr) / (std::sqrt(v) / correction + eps));
  }
}

void sgd_piece(const AbeleSgd& sgd, const AbeleSgdTensor& t, int64_t begin, int64_t end) {
  const float rate = static_cast<float>(sgd.rate), momentum = static_cast<float>(sgd.momentum);
  const float rest = static_cast<float>(sgd.rest), decay = static_cast<float>(sgd.decay);
  float *p = t.param, *velocity = t.velocity;
  const bool decays = sgd.decay != 0, nesterov = sgd.nesterov != 0;
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) {
    const float g = decays ? t.grad[i] + decay * p[i] : t.grad[i];
    const float v = velocity[i] * momentum + rest * g;
    velocity[i] = v;
    p[i] -= rate * (nesterov ? g + momentum * v : v);
  }
}

}  // namespace

int abele_adam(const AbeleAdam* adam, const AbeleAdamTensor* tensors, int64_t count, double rate,
               int threads) {
  constexpr decltype(&adam_piece<float, float>) RUN[] = {
      adam_piece<float, float>, adam_piece<abele::Half, float>,
      adam_piece<abele::Half, abele::Half>, adam_piece<abele::Bfloat, float>,
      adam_piece<abele::Bfloat, abele::Bfloat>};
  const auto run = RUN[adam->param_type == 0 ? 0 : 2 * adam->param_type - (adam->grad_type == 0)];
  for (int64_t k = 0; k < count; ++k) *tensors[k].step += 1.0;
  return for_each_piece(tensors, count, threads, [&](const auto& tensor, auto begin, auto end) {
    run(*adam, tensor, rate, begin, end);
  });
}

int abele_sgd(const AbeleSgd* sgd, const AbeleSgdTensor* tensors, int64_t count, int threads) {
  return for_each_piece(tensors, count, threads, [&](const auto& tensor, auto begin, auto end) {
    sgd_piece(*sgd, tensor, begin, end);
  });
}
