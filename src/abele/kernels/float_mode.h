// How threads treat subnormal numbers, those below 1.2e-38: each costs some 150 cycles on Intel's
// processors, and momentum that fades away ends there.
#pragma once

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace abele {

// The mode of the calling thread. A thread that copies it (`firstprivate`) has the same mode for as
// long as the copy lives, and then its own again: a team computes as the thread that started it.
class FloatMode {
 public:
  FloatMode() : mode_(current()), before_(mode_) {}
  FloatMode(const FloatMode& other) : FloatMode(other.mode_) {}
  FloatMode& operator=(const FloatMode&) = delete;
  ~FloatMode() {
    if (mode_ != before_) set(before_);
  }

  // Subnormal operands and results are zero in the calling thread while this lives.
  static FloatMode flushed() { return FloatMode(current() | FLUSHED); }

 private:
  explicit FloatMode(unsigned mode) : mode_(mode), before_(current()) {
    if (mode_ != before_) set(mode_);
  }

#if defined(__SSE__)
  // Flush to zero, denormals are zero (Intel 64 manual, volume 1, 10.2.3). What happened is no mode.
  static constexpr unsigned FLUSHED = 0x8040, HAPPENED = 0x3f;
  static unsigned current() { return _mm_getcsr() & ~HAPPENED; }
  static void set(unsigned mode) { _mm_setcsr(mode); }
#else
  static constexpr unsigned FLUSHED = 0;
  static unsigned current() { return 0; }
  static void set(unsigned) {}
#endif

  const unsigned mode_, before_;
};

}  // namespace abele
