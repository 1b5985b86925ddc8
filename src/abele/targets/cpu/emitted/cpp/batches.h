// Products of many matrices, and of matrices of doubles.
#pragma once

#include "matrix.h"

extern "C" void dgemm_(const char* a_form, const char* b_form, const int* m, const int* n,
                       const int* k, const double* alpha, const double* a, const int* a_step,
                       const double* b, const int* b_step, const double* beta, double* c,
                       const int* c_step);

namespace abele {

inline void product(int m, int n, int k, const double* a, int a_row, int a_column, const double* b,
                    int b_row, int b_column, double beta, double* c, int c_step) {
  const double one = 1.0;
  const char *a_form = a_column == 1 ? "N" : "T", *b_form = b_column == 1 ? "N" : "T";
  const int a_step = a_column == 1 ? a_row : a_column, b_step = b_column == 1 ? b_row : b_column;
  dgemm_(b_form, a_form, &n, &m, &k, &one, b, &b_step, a, &a_step, &beta, c, &c_step);
}

// c[i] = a[i] b[i]; whole products are shared between threads.
template <int most, class T>
inline void products(Index count, int m, int n, int k, const T* a, Index a_next, int a_row,
                     int a_column, const T* b, Index b_next, int b_row, int b_column, T* c,
                     int threads) {
  share<most>(count, threads, [=](Index begin, Index end) {
    for (Index i = begin; i < end; ++i)
      product(m, n, k, a + i * a_next, a_row, a_column, b + i * b_next, b_row, b_column, 0,
              c + i * m * n, n);
  });
}

}  // namespace abele
