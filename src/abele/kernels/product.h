// Products of matrices, for kernels that have memory of their own beside.
#pragma once

#include "calls.h"

namespace abele {

// What abele_product computes.
void product(const AbeleProduct& p, const void* a, const void* b, void* c, int threads,
             Scratch& memory);

}  // namespace abele
