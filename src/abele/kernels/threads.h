// Threads that share the work of a kernel: those of OpenMP, or our own where a compiler has none.
#pragma once

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>

#include "float_mode.h"

#if defined(_OPENMP)
#include <omp.h>
#else
#include "own_threads.h"
#endif

// How many threads may work at a time: fewer than cores while other processes use these.
// threads.py writes it.
extern "C" __attribute__((used, visibility("default"))) inline std::atomic<int>
    abele_usable_threads{INT_MAX};

namespace abele {

using Index = int64_t;

struct Part {
  Index begin, size;
};
inline Part part(Index n, Index parts, Index i) {
  const Index begin = n * i / parts;
  return {begin, n * (i + 1) / parts - begin};
}

// Calls body(thread, size) on each of `size` threads, at most as many as asked for, which is usual;
// with `together` at the same time, as `meet` needs.
template <class Body>
inline void start_threads(int threads, const Body& body, bool together) {
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

// Calls body(thread, threads) for each of so many threads, which do not wait for each other: where
// fewer are usable, one does the work of several.
template <class Body>
inline void on_threads(int threads, const Body& body) {
  const int usable = std::min(threads, abele_usable_threads.load(std::memory_order_relaxed));
  const auto some = [&](int first, int size) {
    for (int i = first; i < threads; i += size) body(i, threads);
  };
  if (usable <= 1) return some(0, 1);
  start_threads(usable, some, false);
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
