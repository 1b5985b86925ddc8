// Products of matrices by the library that torch brings: those that abi.h has no kernel for.
#pragma once

#include "parallel.h"

// Of MKL, for the thread that calls: returns what held before. Null where torch brings another library.
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int threads);
extern "C" void sgemm_(const char* a_form, const char* b_form, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* a_step,
                       const float* b, const int* b_step, const float* beta, float* c,
                       const int* c_step);
extern "C" void dgemm_(const char* a_form, const char* b_form, const int* m, const int* n,
                       const int* k, const double* alpha, const double* a, const int* a_step,
                       const double* b, const int* b_step, const double* beta, double* c,
                       const int* c_step);

namespace abele {

// The library's function for a type.
constexpr auto gemm(float) { return &sgemm_; }
constexpr auto gemm(double) { return &dgemm_; }

// With fewer multiply-adds a product is for one thread. The library would wake all, and those that read parts
// of a weight which the calling thread updates cost it more than they save: lines go from cache to cache.
constexpr Index LEAST_SHARED = 480000;

class LibraryThreads {
 public:
  explicit LibraryThreads(Index adds)
      : alone_(adds < LEAST_SHARED && MKL_Set_Num_Threads_Local != nullptr),
        before_(alone_ ? MKL_Set_Num_Threads_Local(1) : 0) {}
  ~LibraryThreads() {
    if (alone_) MKL_Set_Num_Threads_Local(before_);
  }
  LibraryThreads(const LibraryThreads&) = delete;

 private:
  bool alone_;
  int before_;
};

// c[m, n] = a[m, k] b[k, n]; rows of c follow each other. Of the two steps of a and of b, from row
// to row and from column to column, one is 1. The library counts columns first, so it computes the
// transposed product of the transposed matrices.
template <class T>
inline void product(int m, int n, int k, const T* a, int a_row, int a_column, const T* b, int b_row,
                    int b_column, T* c) {
  const T one = 1, zero = 0;
  const char *a_form = a_column == 1 ? "N" : "T", *b_form = b_column == 1 ? "N" : "T";
  const int a_step = a_column == 1 ? a_row : a_column, b_step = b_column == 1 ? b_row : b_column;
  const LibraryThreads threads(Index(m) * n * k);
  gemm(one)(b_form, a_form, &n, &m, &k, &one, b, &b_step, a, &a_step, &zero, c, &n);
}

// c[i] = a[i] b[i]; whole products are shared between threads.
template <int most, class T>
inline void products(Index count, int m, int n, int k, const T* a, Index a_next, int a_row,
                     int a_column, const T* b, Index b_next, int b_row, int b_column, T* c,
                     int threads) {
  share<most>(count, threads, [=](Index begin, Index end) {
    for (Index i = begin; i < end; ++i)
      product(m, n, k, a + i * a_next, a_row, a_column, b + i * b_next, b_row, b_column,
              c + i * m * n);
  });
}

}  // namespace abele
