// Moments of the clock, and runs of a program for one micro-batch after the other.
#pragma once

#include <time.h>

#include "math.h"

namespace abele {

// On the clock of Python's time.perf_counter_ns.
inline Index moment() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return Index(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// `addresses` has `changing` addresses for each of `times` runs: what the entries of the table that
// `entries` names hold then. `moments` gets the beginning and the end of each run. Ends early, with
// its status, where a run fails.
template <class Step>
int repeat(Step step, char* arena, void** table, int threads, Index times, Index changing,
           const Index* entries, void* const* addresses, Index* moments) {
  for (Index time = 0; time < times; ++time) {
    for (Index each = 0; each < changing; ++each) {
      table[entries[each]] = addresses[time * changing + each];
    }
    moments[2 * time] = moment();
    if (const int status = step(arena, table, threads)) return status;
    moments[2 * time + 1] = moment();
  }
  return 0;
}

}  // namespace abele
