// Blocks of samples as images of lanes, and the threads that share the work on them.
#pragma once

#include "lanes.h"

namespace abele {
inline namespace ABELE_LENGTH {

// Who this thread is among those that work on the same blocks of samples, and which they are.
struct Team {
  int rank, size;
  Part blocks;
  Index end() const { return blocks.begin + blocks.size; }

  template <class Body>
  void share(Index tasks, Body body) const {
    // Neighbours for one thread: they write to the same lines of the cache.
    const auto [first, count] = part(tasks, size, rank);
    for (Index t = first; t < first + count; ++t) body(t);
  }
  void wait() const {
    if (size > 1) meet();
  }
};

// With blocks enough, every thread takes its own and waits for nobody; else all share each block. Its own
// follow each other: loops over samples are shared so, too, and find in the cache what they read.
inline bool blocks_per_thread(Index blocks, int threads) {
  return threads > 1 && (blocks % threads == 0 || blocks >= 4 * threads);
}

// Calls body(team, thread) on each thread and says how many there were: as many as are usable where they
// meet.
template <class Body>
int with_teams(Index blocks, int threads, Body body) {
  const bool apart = blocks_per_thread(blocks, threads);
  if (!apart) threads = std::min(threads, abele_usable_threads.load(std::memory_order_relaxed));
  if (threads <= 1) {
    body(Team{0, 1, {0, blocks}}, 0);
    return 1;
  }
  int started = 1;
  const auto work = [&](int thread, int size) {
    if (thread == 0) started = size;
    if (apart)
      body(Team{0, 1, part(blocks, size, thread)}, thread);
    else
      body(Team{thread, size, {0, blocks}}, thread);
  };
  if (apart)
    on_threads(threads, work);
  else
    start_threads(threads, work, true);
  return started;
}

// Where the pixels of one block of samples lie, with zero columns on both sides of each row.
struct Image {
  Index channels, height, width, left, right;
  Vec* pixels;
  Index row() const { return left + width + right; }
  Index plane() const { return height * row(); }
  Index size() const { return channels * plane(); }
  const Vec* at(Index channel, Index y) const {
    return pixels + channel * plane() + y * row() + left;
  }
};

inline void fill(const Team& team, const Image& image, const float* samples, Index valid) {
  const Index pixels = image.height * image.width, stride = image.channels * pixels;
  const Index pieces = std::min<Index>(image.height, 4);
  team.share(image.channels * pieces, [&](Index task) {
    const Index c = task / pieces;
    const auto [y0, rows] = part(image.height, pieces, task % pieces);
    const float* from = samples + c * pixels + y0 * image.width;
    Vec* to = image.pixels + c * image.plane() + y0 * image.row();
    if (image.row() == image.width) {
      to_lanes(from, stride, valid, rows * image.width, to);
      return;
    }
    for (Index y = 0; y < rows; ++y, from += image.width, to += image.row()) {
      std::fill(to, to + image.left, Vec{});
      to_lanes(from, stride, valid, image.width, to + image.left);
      std::fill(to + image.left + image.width, to + image.row(), Vec{});
    }
  });
}

}  // namespace ABELE_LENGTH
}  // namespace abele
