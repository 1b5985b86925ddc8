// Moments, on the clock of Python's time.perf_counter_ns.
#pragma once

#include <time.h>

#include "math.h"

namespace abele {

inline Index moment() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return Index(now.tv_sec) * 1000000000 + now.tv_nsec;
}

}  // namespace abele
