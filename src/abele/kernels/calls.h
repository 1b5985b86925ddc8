// What every kernel begins with: the description, memory, and no exception that leaves it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "abi.h"
#include "threads.h"

namespace abele {


inline Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

// Part `i` of `n` things cut into `parts` as evenly as possible.

// Memory of the same size for each of several threads.
template <class T>
struct Each {
  T* first;
  Index step;
  T* of(int thread) const { return first + thread * step; }
};

// Memory that a thread keeps between calls; what a call takes is valid until it ends.
class Scratch {
 public:
  ~Scratch();
  // Forgets what earlier calls took, and joins it to one block.
  void begin();
  // Gives memory back where it is more than a thread should keep.
  void end();
  // Gives all memory back.
  void release();
  template <class T>
  T* take(Index count) {
    return static_cast<T*>(take_bytes(count * sizeof(T)));
  }
  // In every call a thread of a team has the same memory, so that it is in its cache: what another
  // thread wrote last would have to come from there, even to be written over.
  template <class T>
  Each<T> each(Index count, int threads) {
    static_assert(ROOM % sizeof(T) == 0);
    void* memory = take_rooms(count * sizeof(T), threads);
    if (memory == nullptr) return {take<T>(threads * count), count};
    return {static_cast<T*>(memory), ROOM / static_cast<Index>(sizeof(T))};
  }
  template <class T>
  T* zeros(Index count) {
    T* result = take<T>(count);
    for (Index i = 0; i < count; ++i) result[i] = T{};
    return result;
  }

 private:
  // Of each thread. An odd number of lines more than a power of two: rooms of threads that share a
  // cache do not push each other out.
  static constexpr Index ROOM = (1 << 20) + 64 * 33;
  struct Block {
    char* memory;
    size_t size;
  };
  void* take_bytes(size_t bytes);
  // Null if that much does not fit.
  void* take_rooms(size_t bytes, int threads);
  size_t total() const;
  void add(size_t bytes);

  std::vector<Block> blocks_;
  size_t used_ = 0;  // of the last block
  Block rooms_ = {nullptr, 0};
  size_t used_of_room_ = 0;
};

// That of the calling thread. Only the function that was called takes from it, no other thread.
Scratch& scratch();

// Calls body(scratch) and says whether there was memory for it.
template <class Body>
int guarded(Body body) {
  Scratch& memory = scratch();
  try {
    memory.begin();
    body(memory);
    memory.end();
    return ABELE_OK;
  } catch (const std::bad_alloc&) {
    memory.release();
    return ABELE_NO_MEMORY;
  }
}

}  // namespace abele
