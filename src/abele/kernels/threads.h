// Threads that share the work of a kernel: those of OpenMP, or our own where a compiler has none.
#pragma once

#include <cstdint>

#include "float_mode.h"

#if defined(_OPENMP)
#include <omp.h>
#else
#include "own_threads.h"
#endif

namespace abele {

using Index = int64_t;

struct Part {
  Index begin, size;
};
inline Part part(Index n, Index parts, Index i) {
  const Index begin = n * i / parts;
  return {begin, n * (i + 1) / parts - begin};
}

// Calls body(thread, size) for each of `size` threads, at most as many as asked for, which is usual.
// With `together`, all of them run at the same time, as `meet` needs.
template <class Body>
inline void on_threads(int threads, const Body& body, bool together = false) {
  if (threads <= 1) return body(0, 1);
  const FloatMode mode;
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads) firstprivate(mode)
  body(omp_get_thread_num(), omp_get_num_threads());
#else
  own_threads::run(threads, together, [&](int thread, int size) {
    const FloatMode same = mode;
    body(thread, size);
  });
#endif
}

// Waits until all threads that work together have come here.
inline void meet() {
#if defined(_OPENMP)
#pragma omp barrier
#else
  own_threads::meet();
#endif
}

// Calls run(i) for i < count; each thread has neighbours, in order.
template <class Run>
inline void for_each(Index count, int threads, const Run& run) {
  on_threads(threads, [&](int thread, int size) {
    const auto [begin, own] = part(count, size, thread);
    for (Index i = begin; i < begin + own; ++i) run(i);
  });
}

}  // namespace abele
