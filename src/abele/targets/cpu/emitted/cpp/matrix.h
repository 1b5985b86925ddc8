// Products of matrices, by the library that torch brings.
#pragma once

#include "parallel.h"

extern "C" void sgemm_(const char* a_form, const char* b_form, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* a_step,
                       const float* b, const int* b_step, const float* beta, float* c,
                       const int* c_step);

namespace abele {

// c[m, n] = a[m, k] b[k, n] + beta c; rows of c follow each other after `c_step`. Of the two steps
// of a and of b, from row to row and from column to column, one is 1. The library counts columns
// first, so it computes the transposed product of the transposed matrices.
inline void product(int m, int n, int k, const float* a, int a_row, int a_column, const float* b,
                    int b_row, int b_column, float beta, float* c, int c_step) {
  const float one = 1.0f;
  const char *a_form = a_column == 1 ? "N" : "T", *b_form = b_column == 1 ? "N" : "T";
  const int a_step = a_column == 1 ? a_row : a_column, b_step = b_column == 1 ? b_row : b_column;
  sgemm_(b_form, a_form, &n, &m, &k, &one, b, &b_step, a, &a_step, &beta, c, &c_step);
}

}  // namespace abele
