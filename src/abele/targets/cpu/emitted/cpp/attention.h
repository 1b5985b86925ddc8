// Attention: softmax(scale q k^T) v for each head of each sample, and its gradients.
//
// A block of queries is computed with all keys that it sees, so that its scores stay in the cache.
// Backward computes them again.
#pragma once

#include "activations.h"
#include "extremes.h"
#include "kernels.h"

namespace abele {

constexpr Index QUERIES = 64;  // of a block

// A tensor [samples, heads, positions, depth]; elements along the depth are neighbours.
template <class T>
struct Heads {
  T* data;
  Index sample, head, position;
  Heads at(Index s, Index h) const { return {data + s * sample + h * head, sample, head, position}; }
  Heads from(Index i) const { return {data + i * position, sample, head, position}; }
  T* row(Index i) const { return data + i * position; }
};
using Read = Heads<const float>;
using Write = Heads<float>;

// Asks for positions of a head that is read soon: the processor does not see where the next one is.
inline void fetch(Read head, Index positions, Index depth) {
  for (Index i = 0; i < positions; ++i)
    for (Index d = 0; d < depth; d += LANES) __builtin_prefetch(head.row(i) + d, 0, 2);
}

struct Attention {
  Index samples, heads, queries, keys, depth, value_depth;
  float scale;
  bool causal;  // a query sees the keys up to its own position

  Index seen(Index query) const { return causal && query + 1 < keys ? query + 1 : keys; }
};

// c (+)= a b of one thread, with steps from row to row and from column to column.
inline int small_product(Index rows, Index columns, Index inner, const float* a, Index a_row,
                         Index a_column, const float* b, Index b_row, Index b_column, float* c,
                         Index c_row, bool added) {
  return multiply({1, rows, columns, inner, 0, a_row, a_column, 0, b_row, b_column, 0, c_row, 0,
                   added},
                  a, b, c, 1);
}

// How many scores of a row are computed where `seen` count: whole vectors are faster.
inline Index in_vectors(Index seen, Index width) {
  const Index whole = (seen + LANES - 1) / LANES * LANES;
  return whole < width ? whole : width;
}

// Scores of rows `first` and following become exp(scale (score - largest)), 0 where nothing is seen.
// Also gives the sum of each row, and the logarithm of that of exp(scale score). A step for all rows
// before the next step: no row has to wait for its own last result.
inline void softmax_scores(const Attention& all, Index first, Index rows, Index width,
                           float* scores, float* totals, float* logarithms) {
  const float none = -std::numeric_limits<float>::infinity(), scale = all.scale;
  float largest[QUERIES];
  for (Index i = 0; i < rows; ++i) {
    float* row = scores + i * width;
    const Index seen = all.seen(first + i), some = in_vectors(seen, width);
    for (Index j = some < LANES ? 0 : some - LANES; j < some; ++j) row[j] = j < seen ? row[j] : none;
    largest[i] = largest_number(some, row);
  }
  for (Index i = 0; i < rows; ++i) {
    float* row = scores + i * width;
    const Index some = in_vectors(all.seen(first + i), width);
    const float most = largest[i];
#pragma GCC ivdep
    for (Index j = 0; j < some; ++j) row[j] = exp_up_to_88((row[j] - most) * scale);
    // Torch's result is 0 if nothing is larger, also where all scores are NaN.
    for (Index j = most == none ? 0 : some; j < width; ++j) row[j] = 0.0f;
  }
  for (Index i = 0; i < rows; ++i) {
    const float* row = scores + i * width;
    totals[i] = sum_of(in_vectors(all.seen(first + i), width), [=](Index j) { return row[j]; });
  }
#pragma GCC ivdep
  for (Index i = 0; i < rows; ++i) {
    const float total = largest[i] == none ? 1.0f : totals[i];
    const float logarithm = largest[i] * scale + log(total);
    totals[i] = total;
    logarithms[i] = largest[i] == none ? 0.0f : logarithm;
  }
}

// One head; `keys` is at least that of `all`.
template <Index keys>
inline int attend(const Attention& all, Read q, Read k, Read v, Write y, float* logarithms) {
  alignas(64) float scores[QUERIES * keys];
  float totals[QUERIES];
  int status = 0;
  for (Index first = 0; first < all.queries; first += QUERIES) {
    const Index rows = all.queries - first < QUERIES ? all.queries - first : QUERIES;
    const Index width = all.seen(first + rows - 1);
    status |= small_product(rows, width, all.depth, q.row(first), q.position, 1, k.data, 1,
                            k.position, scores, width, false);
    softmax_scores(all, first, rows, width, scores, totals, logarithms + first);
    status |= small_product(rows, all.value_depth, width, scores, width, 1, v.data, v.position, 1,
                            y.row(first), y.position, false);
    for (Index i = 0; i < rows; ++i) {
      float* to = y.row(first + i);
      const float factor = 1.0f / totals[i];
      for (Index d = 0; d < all.value_depth; ++d) to[d] *= factor;
    }
  }
  return status;
}

template <int most, Index keys>
inline int attention(Attention all, Read q, Read k, Read v, Write y, float* logarithms,
                     int threads) {
  int status = 0;
  share<most>(all.samples * all.heads, threads, [&](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const Index s = task / all.heads, h = task % all.heads;
      if (task + 1 < end) {
        const Index next = (task + 1) / all.heads, head = (task + 1) % all.heads;
        fetch(q.at(next, head), all.queries, all.depth);
        fetch(k.at(next, head), all.keys, all.depth);
        fetch(v.at(next, head), all.keys, all.value_depth);
      }
      const int done = attend<keys>(all, q.at(s, h), k.at(s, h), v.at(s, h), y.at(s, h),
                                    logarithms + task * all.queries);
      if (done != 0) __atomic_store_n(&status, done, __ATOMIC_RELAXED);
    }
  });
  return status;
}

// Of one row: probabilities from scores, and the gradients of scores from those of probabilities.
inline void score_gradients(const Attention& all, Index seen, Index width, float logarithm,
                            float weighted, float* scores, float* grads) {
  const float scale = all.scale;
  const Index some = in_vectors(seen, width);
#pragma GCC ivdep
  for (Index j = 0; j < some; ++j) {
    const float p = exp_up_to_88(scores[j] * scale - logarithm);
    scores[j] = p;
    grads[j] = p * (grads[j] - weighted) * scale;
  }
  for (Index j = seen; j < width; ++j) scores[j] = grads[j] = 0.0f;
}

template <Index keys>
inline int attend_backward(const Attention& all, Read grad, Read q, Read k, Read v, Read y,
                           const float* logarithms, Write grad_q, Write grad_k, Write grad_v) {
  alignas(64) float scores[QUERIES * keys];
  alignas(64) float grads[QUERIES * keys];
  float weighted[QUERIES];
  const Index blocks = (all.queries + QUERIES - 1) / QUERIES, far = all.seen(all.queries - 1);
  for (Index j = far; j < all.keys; ++j) {  // nobody saw these
    for (Index d = 0; d < all.depth; ++d) grad_k.row(j)[d] = 0.0f;
    for (Index d = 0; d < all.value_depth; ++d) grad_v.row(j)[d] = 0.0f;
  }
  int status = 0;
  // The last block sees the most keys, so that the others add to what it has written.
  for (Index block = blocks - 1; block >= 0; --block) {
    const Index first = block * QUERIES;
    const Index rows = all.queries - first < QUERIES ? all.queries - first : QUERIES;
    const Index width = all.seen(first + rows - 1);
    const bool added = block < blocks - 1;
    status |= small_product(rows, width, all.depth, q.row(first), q.position, 1, k.data, 1,
                            k.position, scores, width, false);
    status |= small_product(rows, width, all.value_depth, grad.row(first), grad.position, 1,
                            v.data, 1, v.position, grads, width, false);
    for (Index i = 0; i < rows; ++i) {
      const float *g = grad.row(first + i), *result = y.row(first + i);
      weighted[i] = sum_of(all.value_depth, [=](Index d) { return g[d] * result[d]; });
    }
    for (Index i = 0; i < rows; ++i)
      score_gradients(all, all.seen(first + i), width, logarithms[first + i], weighted[i],
                      scores + i * width, grads + i * width);
    status |= small_product(rows, all.depth, width, grads, width, 1, k.data, k.position, 1,
                            grad_q.row(first), grad_q.position, false);
    status |= small_product(width, all.depth, rows, grads, 1, width, q.row(first), q.position, 1,
                            grad_k.data, grad_k.position, added);
    status |= small_product(width, all.value_depth, rows, scores, 1, width, grad.row(first),
                            grad.position, 1, grad_v.data, grad_v.position, added);
  }
  return status;
}

template <int most, Index keys>
inline int attention_backward(Attention all, Read grad, Read q, Read k, Read v, Read y,
                              const float* logarithms, Write grad_q, Write grad_k, Write grad_v,
                              int threads) {
  int status = 0;
  share<most>(all.samples * all.heads, threads, [&](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const Index s = task / all.heads, h = task % all.heads;
      if (task + 1 < end) {
        const Index next = (task + 1) / all.heads, head = (task + 1) % all.heads;
        fetch(q.at(next, head), all.queries, all.depth);
        fetch(k.at(next, head), all.keys, all.depth);
        fetch(v.at(next, head), all.keys, all.value_depth);
        fetch(grad.at(next, head), all.queries, all.value_depth);
        fetch(y.at(next, head), all.queries, all.value_depth);
      }
      const int done = attend_backward<keys>(
          all, grad.at(s, h), q.at(s, h), k.at(s, h), v.at(s, h), y.at(s, h),
          logarithms + task * all.queries, grad_q.at(s, h), grad_k.at(s, h), grad_v.at(s, h));
      if (done != 0) __atomic_store_n(&status, done, __ATOMIC_RELAXED);
    }
  });
  return status;
}

}  // namespace abele
