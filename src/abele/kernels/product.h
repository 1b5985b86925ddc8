// Products of matrices, for kernels that have memory of their own beside.
#pragma once

#include "calls.h"

namespace abele {

// What abele_product computes.
void product(const AbeleProduct& p, const void* a, const void* b, void* c, int threads,
             Scratch& memory);

// The columns of part `which` of so many, for a product whose b is packed, in float32: whole panels of
// PRODUCT_COLUMNS, as evenly as possible.
int multiply_columns(const AbeleProduct& p, const float* a, const float* packed, float* c,
                     Index parts, Index which);

}  // namespace abele
