// Adam (arXiv 1412.6980) over many tensors in one pass over memory.
//
// The arithmetic is that of update_rules.py, operation by operation, in float32 with corrections in
// float64; numbers of 16 bits are converted where they are read and written.
#include <cmath>

#include "half.h"
#include "pieces.h"

namespace {

template <class Param, class Grad>
void update(const AbeleAdam& adam, const AbeleAdamTensor& t, double rate, int64_t begin,
            int64_t end) {
  const double step = *t.step;
  const double rise = 1.0 - std::pow(adam.beta1, step);
  const double root = std::sqrt(1.0 - std::pow(adam.beta2, step));
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

template <class Param>
constexpr auto updating(bool narrow) {
  return narrow ? update<Param, Param> : update<Param, float>;
}

}  // namespace

int abele_adam(const AbeleAdam* adam, const AbeleAdamTensor* tensors, int64_t count, double rate,
               int threads) {
  const bool narrow = adam->grad_type != 0;
  const auto run = adam->param_type == 0   ? update<float, float>
                   : adam->param_type == 1 ? updating<abele::Half>(narrow)
                                           : updating<abele::Bfloat>(narrow);
  for (int64_t k = 0; k < count; ++k) *tensors[k].step += 1.0;
  abele::for_each_piece(tensors, count, threads,
                        [&](const AbeleAdamTensor& tensor, int64_t begin, int64_t end) {
                          run(*adam, tensor, rate, begin, end);
                        });
  return ABELE_OK;
}
