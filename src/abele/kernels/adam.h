// Adam's update of many parameters; see adam.cpp.
#pragma once

#include <cstdint>

extern "C" {
struct AbeleAdam {
  double beta1, beta2, eps, decay;  // decay: decoupled from the gradient
};

// One parameter tensor, updated in place. `step` counts updates.
struct AbeleAdamTensor {
  int64_t size;
  float *param, *first, *second;
  const float* grad;
  double* step;
};

void abele_adam(const AbeleAdam* adam, const AbeleAdamTensor* tensors, int64_t count, double rate,
                int threads);
}
