// How threads treat subnormal numbers, those below 1.2e-38: each costs some 150 cycles on Intel's
// processors, and momentum that fades away ends there.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace abele {

// The mode of the calling thread. A thread that copies it (`firstprivate`) has the same mode for as
// long as the copy lives: a team computes as the thread that started it. After that each has the
// mode that the starter has outside: a thread that is made while its starter flushes is born so.
class FloatMode {
 public:
  FloatMode() : FloatMode(current(), current(), outside_ == NONE ? current() : outside_) {}
  FloatMode(const FloatMode& other)
      : FloatMode(other.mode_, outside_ == NONE ? other.outer_ : current(), other.outer_) {}
  FloatMode& operator=(const FloatMode&) = delete;
  ~FloatMode() {
    if (mode_ != after_) set(after_);
    if (begins_) outside_ = NONE;
  }

  // Subnormal operands and results are zero in the calling thread while this lives.
  static FloatMode flushed() {
    const FloatMode before;
    const bool begins = outside_ == NONE;
    outside_ = before.outer_;
    return FloatMode(before.mode_ | FLUSHED, before.mode_, before.outer_, begins);
  }

 private:
  FloatMode(unsigned mode, unsigned after, unsigned outer, bool begins = false)
      : mode_(mode), after_(after), outer_(outer), begins_(begins) {
    if (mode_ != current()) set(mode_);
  }

#if defined(__SSE__)
  // Flush to zero, denormals are zero (Intel 64 manual, volume 1, 10.2.3). What happened is no mode.
  static constexpr unsigned FLUSHED = 0x8040, HAPPENED = 0x3f;
  static unsigned current() { return _mm_getcsr() & ~HAPPENED; }
  static void set(unsigned mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  // Flush to zero (Arm architecture reference manual, FPCR.FZ), of operands and results.
  static constexpr unsigned FLUSHED = 1u << 24;
  static unsigned current() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return static_cast<unsigned>(mode);
  }
  static void set(unsigned mode) { asm volatile("msr fpcr, %0" : : "r"(uint64_t{mode})); }
#else
  static constexpr unsigned FLUSHED = 0;
  static unsigned current() { return 0; }
  static void set(unsigned) {}
#endif

  static constexpr unsigned NONE = ~0u;
  // The mode that a thread that flushes had before.
  static inline thread_local unsigned outside_ = NONE;

  const unsigned mode_, after_, outer_;
  const bool begins_;
};

}  // namespace abele
