// Sharing loops between threads.
#pragma once

#include "float_mode.h"
#include "math.h"

namespace abele {

// Calls run(begin, end) for parts of 0..n: at most `most` parts, one for each thread.
template <int most, class Run>
inline void share(Index n, int threads, Run run) {
  if (most == 1 || threads == 1) return run(Index(0), n);
  const int parts = most < threads ? most : threads;
  const FloatMode mode;
#pragma omp parallel for num_threads(parts) schedule(static, 1) firstprivate(mode)
  for (int part = 0; part < parts; ++part) run(n * part / parts, n * (part + 1) / parts);
}

}  // namespace abele
