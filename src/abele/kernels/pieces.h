// Elements of many tensors in pieces of equal size, wherever tensors begin.
#pragma once

#include <algorithm>

#include "abi.h"
#include "float_mode.h"

namespace abele {

// Calls run(tensor, begin, end) for each piece; threads share the pieces.
template <class Tensor, class Run>
void for_each_piece(const Tensor* tensors, int64_t count, int threads, const Run& run) {
  constexpr int64_t PIECE = 16384;
  const FloatMode mode;
#pragma omp parallel num_threads(threads) if (threads > 1) firstprivate(mode)
  for (int64_t k = 0; k < count; ++k) {
    const int64_t size = tensors[k].size, pieces = (size + PIECE - 1) / PIECE;
#pragma omp for schedule(static) nowait
    for (int64_t piece = 0; piece < pieces; ++piece)
      run(tensors[k], piece * PIECE, std::min(size, (piece + 1) * PIECE));
  }
}

}  // namespace abele
