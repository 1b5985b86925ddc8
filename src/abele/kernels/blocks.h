// Blocks of work that threads take one after the other, each first its own.
//
// Of the cores of a rented machine one is often slower than another for a while, because somebody else
// computes beside it; with equal shares the others would wait. So a thread begins with the blocks that it
// had in the call before, whose memory is in its cache, and then takes what is left of another's.
#pragma once

#include "calls.h"

namespace abele {

class Blocks {
 public:
  Blocks(Index count, int threads, Scratch& memory)
      : own_(memory.take<Own>(threads)), threads_(threads) {
    for (int i = 0; i < threads; ++i) {
      const Part mine = part(count, threads, i);
      own_[i].left = range(mine.begin, mine.begin + mine.size);
    }
  }

  // Those that a thread computes next: of its own several at a time while many are left, of another's the
  // last. None if all are taken.
  Part next(int thread) const {
    for (int i = 0; i < threads_; ++i) {
      const Part some = taken(own_[(thread + i) % threads_].left, i == 0);
      if (some.size > 0) return some;
    }
    return {0, 0};
  }

  // So many are taken at a time at most.
  static constexpr Index MOST = 2;

 private:
  // First and last + 1 of what is left, in one word; each thread's in a line of its own.
  struct Own {
    uint64_t left;
    char others[64 - sizeof(uint64_t)];
  };
  static uint64_t range(Index begin, Index end) {
    return static_cast<uint64_t>(begin) << 32 | static_cast<uint64_t>(end);
  }

  Part taken(uint64_t& left, bool own) const {
    uint64_t seen = __atomic_load_n(&left, __ATOMIC_RELAXED);
    for (;;) {
      const Index begin = seen >> 32, end = seen & 0xffffffff, count = end - begin;
      if (count == 0) return {0, 0};
      // A thread alone leaves none to others.
      const bool several = own && count >= (threads_ == 1 ? MOST : 2 * MOST);
      const Part some{own ? begin : end - 1, several ? MOST : 1};
      const uint64_t rest = own ? range(begin + some.size, end) : range(begin, end - 1);
      if (__atomic_compare_exchange_n(&left, &seen, rest, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED))
        return some;
    }
  }

  Own* own_;
  int threads_;
};

}  // namespace abele
