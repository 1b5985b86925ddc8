// Sharing loops between threads.
#pragma once

#include <tuple>

#include "math.h"
#include "threads.h"

namespace abele {

using Call = void (*)(const void* run, Index begin, Index end);

// Calls call(run, begin, end) for `parts` parts of 0..n, one for each thread.
static __attribute__((noinline, unused)) void share_parts(Index n, int parts, Call call,
                                                          const void* run) {
  for_each(parts, parts, [&](Index i) { call(run, n * i / parts, n * (i + 1) / parts); });
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

// The same of a function that takes pointers and then a part. One function shares all that take the
// same: where each place that shares has a lambda of its own, compilers need twice as long for it.
template <class Kernel, class... Pointers>
struct Loop {
  Kernel kernel;
  std::tuple<Pointers...> pointers;
};
template <class Kernel, class... Pointers>
__attribute__((noinline)) void run_loop(const void* run, Index begin, Index end) {
  const auto& loop = *static_cast<const Loop<Kernel, Pointers...>*>(run);
  std::apply([&](Pointers... all) { loop.kernel(all..., begin, end); }, loop.pointers);
}
template <class Kernel, class... Pointers>
__attribute__((noinline, noclone)) void share_loop(int most, Kernel kernel, Index n, int threads,
                                                   Pointers... pointers) {
  const int parts = most < threads ? most : threads;
  if (parts <= 1) return kernel(pointers..., 0, n);
  const Loop<Kernel, Pointers...> loop{kernel, {pointers...}};
  share_parts(n, parts, run_loop<Kernel, Pointers...>, &loop);
}

}  // namespace abele
