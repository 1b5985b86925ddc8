// Checksums of memory, which tell whether constants have changed since they were packed.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "abi.h"
#include "threads.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace abele {
namespace {

#if defined(__AVX512F__)
using Words = uint64_t __attribute__((vector_size(64)));
#else
using Words = uint64_t __attribute__((vector_size(32)));
#endif
constexpr Index WIDTH = sizeof(Words) / sizeof(uint64_t);
constexpr Index STRIPE = 128, VECTORS = STRIPE / sizeof(Words);
constexpr Index PART = 1 << 16;              // bytes that have a sum of their own
constexpr Index BYTES_PER_THREAD = 1 << 20;  // waking a thread takes as long as reading some
constexpr uint64_t ODD = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio

// All bits of the result depend on all bits of x: the last steps of SplitMix64
// (doi 10.1145/2660193.2660195).
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The lower half of each word times its upper half; a product of whole words takes three times as
// long.
Words product_of_halves(Words words) {
#if defined(__AVX512F__)
  return (Words)_mm512_mul_epu32((__m512i)words, (__m512i)(words >> 32));
#elif defined(__AVX2__)
  return (Words)_mm256_mul_epu32((__m256i)words, (__m256i)(words >> 32));
#else
  return (words & 0xffffffff) * (words >> 32);
#endif
}

// The checksum of one part. Each word is added to its lane with its halves exchanged, and so is the
// product of its halves under a key that differs at each place: an exchange of words is seen, too.
uint64_t of_part(const char* at, Index bytes, uint64_t seed) {
  Words keys[VECTORS], sums[VECTORS] = {};
  for (Index i = 0; i < VECTORS * WIDTH; ++i) keys[i / WIDTH][i % WIDTH] = mixed(seed + ODD * i);
  const auto add = [&](const char* stripe) {
#pragma GCC unroll 4
    for (Index i = 0; i < VECTORS; ++i) {
      Words words;
      std::memcpy(&words, stripe + i * sizeof(Words), sizeof(Words));
      sums[i] += (words << 32 | words >> 32) + product_of_halves(words ^ keys[i]);
      keys[i] += ODD;
    }
  };
  for (; bytes >= STRIPE; at += STRIPE, bytes -= STRIPE) add(at);
  if (bytes > 0) {
    char rest[STRIPE] = {};
    std::memcpy(rest, at, bytes);
    add(rest);
  }
  uint64_t result = seed;
  for (Index i = 0; i < VECTORS * WIDTH; ++i) {
    result = mixed(result + ODD + sums[i / WIDTH][i % WIDTH]);
  }
  return result;
}

uint64_t checksum(const void* const* memory, const Index* bytes, Index count, int threads) {
  Index parts = 0, all = 0;
  for (Index i = 0; i < count; ++i) {
    parts += (bytes[i] + PART - 1) / PART;
    all += bytes[i];
  }
  std::atomic<uint64_t> total{0};
  const Index most = std::max<Index>(1, std::min<Index>(threads, all / BYTES_PER_THREAD));
  on_threads(int(most), [&](int thread, int size) {
    const auto [first, own] = part(parts, size, thread);
    uint64_t sum = 0;
    for (Index i = 0, begin = 0; i < count; ++i) {
      const Index here = (bytes[i] + PART - 1) / PART;
      for (Index p = std::max(first, begin); p < std::min(first + own, begin + here); ++p) {
        const Index at = (p - begin) * PART;
        sum += of_part(static_cast<const char*>(memory[i]) + at, std::min(PART, bytes[i] - at), p);
      }
      begin += here;
    }
    total += sum;
  });
  return total;
}

}  // namespace
}  // namespace abele

int abele_checksum(const void* const* memory, const int64_t* bytes, int64_t count, int64_t* sum,
                   int threads) {
  *sum = static_cast<int64_t>(abele::checksum(memory, bytes, count, threads));
  return ABELE_OK;
}
