// Memory and threads of the kernels.
#include "calls.h"

#include <algorithm>
#include <cstdlib>

namespace abele {
namespace {

constexpr size_t LINE = 64, PAGE = 4096, MOST_KEPT = size_t{1} << 26;
// Rooms of more threads would be address space for nothing; threads touch what they use of theirs.
constexpr int MOST_ROOMS = 256;
// Waking a thread costs microseconds; each should have this much to do.
constexpr int64_t FLOATS_PER_THREAD = 16384, ADDS_PER_THREAD = 960000;

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Scratch::~Scratch() { release(); }

void Scratch::begin() {
  used_ = used_of_room_ = 0;
  if (blocks_.size() <= 1) return;
  const size_t bytes = total();
  release();
  add(bytes);
}

void Scratch::end() {
  if (total() > MOST_KEPT) release();
}

size_t Scratch::total() const {
  size_t bytes = 0;
  for (const Block& block : blocks_) bytes += block.size;
  return bytes;
}

void* Scratch::take_bytes(size_t bytes) {
  bytes = rounded(bytes, LINE);
  if (blocks_.empty() || used_ + bytes > blocks_.back().size) add(bytes);
  void* result = blocks_.back().memory + used_;
  used_ += bytes;
  return result;
}

void* Scratch::take_rooms(size_t bytes, int threads) {
  bytes = rounded(bytes, LINE);
  const size_t size = rounded(threads * ROOM, PAGE);
  if (used_of_room_ + bytes > ROOM || threads > MOST_ROOMS) return nullptr;
  if (size > rooms_.size) {
    if (used_of_room_ > 0) return nullptr;  // what was taken before has to stay
    std::free(rooms_.memory);
    rooms_ = {static_cast<char*>(std::aligned_alloc(PAGE, size)), size};
    if (rooms_.memory == nullptr) {
      rooms_.size = 0;
      throw std::bad_alloc();
    }
  }
  void* result = rooms_.memory + used_of_room_;
  used_of_room_ += bytes;
  return result;
}

void Scratch::add(size_t bytes) {
  blocks_.reserve(blocks_.size() + 1);
  const size_t size = rounded(std::max<size_t>(bytes, 1), PAGE);
  char* memory = static_cast<char*>(std::aligned_alloc(LINE, size));
  if (memory == nullptr) throw std::bad_alloc();
  blocks_.push_back({memory, size});
  used_ = 0;
}

void Scratch::release() {
  for (const Block& block : blocks_) std::free(block.memory);
  blocks_.clear();
  std::free(rooms_.memory);
  rooms_ = {nullptr, 0};
}

Scratch& scratch() {
  static thread_local Scratch memory;
  return memory;
}

}  // namespace abele

int abele_threads(int64_t floats, int64_t multiply_adds, int available) {
  const int64_t useful =
      floats / abele::FLOATS_PER_THREAD + multiply_adds / abele::ADDS_PER_THREAD;
  return static_cast<int>(std::clamp<int64_t>(useful, 1, std::max(available, 1)));
}
