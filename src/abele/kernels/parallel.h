// Sharing loops between threads.
#pragma once

#include "float_mode.h"
#include "math.h"

namespace abele {

using Part = void (*)(const void* run, Index begin, Index end);

// Calls part(run, begin, end) for `parts` parts of 0..n, one for each thread.
static __attribute__((noinline, unused)) void share_parts(Index n, int parts, Part part,
                                                          const void* run) {
  const FloatMode mode;
#pragma omp parallel for num_threads(parts) schedule(static, 1) firstprivate(mode)
  for (int each = 0; each < parts; ++each) part(run, n * each / parts, n * (each + 1) / parts);
}

// A part of a loop; what it knows is copied, so that the compiler can have it in registers.
template <class Run>
__attribute__((noinline)) void run_part(const void* run, Index begin, Index end) {
  const Run own = *static_cast<const Run*>(run);
  own(begin, end);
}

// Calls run(begin, end) for parts of 0..n: at most `most` parts, one for each thread. Where there may be
// several, all are calls of one function, also if there is one: compilers take twice as long for
// code that is there twice, and as often again as it is inlined.
template <int most, class Run>
inline void share(Index n, int threads, const Run& run) {
  if (most == 1) return run(Index(0), n);
  const int parts = most < threads ? most : threads;
  if (parts <= 1) return run_part<Run>(&run, 0, n);
  share_parts(n, parts, run_part<Run>, &run);
}

}  // namespace abele
