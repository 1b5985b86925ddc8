// Attention: softmax(scale q k^T) v for each head of each sample, and its gradients.
//
// A block of queries is computed with all keys that it sees, so that its scores stay in the cache.
// Backward computes them again. Causal attention leaves out whole tiles of scores that nobody sees.
// Numbers of bfloat16 are multiplied in pairs (dots.h), which stand where floats do: what has one for
// each step along an inner dimension counts units, which are floats or pairs. Sums, scores and their
// softmax are float32; probabilities and gradients of scores are rounded where they are factors.
#include <algorithm>
#include <cmath>
#include <limits>

#include "dots.h"
#include "math.h"

namespace abele {
namespace {

constexpr Index QUERIES = 64;  // of a block

// A head, whose positions lie `step` units apart; elements along the depth are neighbours.
template <class T>
struct Head {
  T* data;
  Index step;
  T* row(Index i) const { return data + i * step; }
  Head from(Index i) const { return {row(i), step}; }
};
using Read = Head<const float>;
using Write = Head<float>;
Matrix in_rows(Read head) { return {head.data, head.step, 1}; }
Matrix turned(Read head) { return {head.data, 1, head.step}; }

// How many numbers a unit has.
Index unit_of(const AbeleAttention& all) { return all.type == ABELE_FLOAT32 ? 1 : PAIR; }

Read nth(const void* data, const AbeleSteps& steps, const AbeleAttention& all, Index task) {
  const Index first = task / all.heads * steps.sample + task % all.heads * steps.head;
  const Index unit = unit_of(all), bytes = first * static_cast<Index>(sizeof(float)) / unit;
  const char* begin = static_cast<const char*>(data) + bytes;
  return {reinterpret_cast<const float*>(begin), steps.position / unit};
}
Write nth(void* data, const AbeleSteps& steps, const AbeleAttention& all, Index task) {
  const Read head = nth(static_cast<const void*>(data), steps, all, task);
  return {const_cast<float*>(head.data), head.step};
}

// Asks for positions of a head that is read soon: the processor does not see where the next one is.
void fetch(Read head, Index positions, Index units) {
  for (Index i = 0; i < positions; ++i)
    for (Index d = 0; d < units; d += LINE) __builtin_prefetch(head.row(i) + d, 0, LATER);
}

Index in_vectors(Index n) { return ceil_div(n, LANES) * LANES; }
Index in_panels(Index n) { return ceil_div(n, PRODUCT_COLUMNS) * PRODUCT_COLUMNS; }
// How many keys a query sees: with `causal` those up to its own position.
Index seen(const AbeleAttention& all, Index query) {
  return all.causal ? std::min(query + 1, all.keys) : all.keys;
}

// A right factor whose rows have neighbours, or is packed: columns in panels of rows.
struct Right {
  Matrix b;
  Index panel;  // from one to the next

  static Right packed(Matrix from, Index inner, Index columns, float* to) {
    const Index panel = inner * PRODUCT_COLUMNS;
    for (Index i = 0; i < columns; i += PRODUCT_COLUMNS, to += panel)
      pack_columns<false>(from.from(0, i), inner, std::min(PRODUCT_COLUMNS, columns - i), to);
    return {{to - ceil_div(columns, PRODUCT_COLUMNS) * panel, PRODUCT_COLUMNS, 1}, panel};
  }
  // Positions are along the inner dimension: pairs are those of two rows. Floats are read where they lie
  // if columns are whole vectors.
  static Right of(Read head, Index unit, Index inner, Index columns, float* room) {
    if (unit == PAIR) return paired(head, inner, columns, room);
    if (columns % LANES != 0) return packed(in_rows(head), inner, columns, room);
    return {in_rows(head), PRODUCT_COLUMNS};
  }
  static Right paired(Read head, Index inner, Index columns, float* to) {
    const Index pairs = ceil_div(inner, PAIR), panel = pairs * PRODUCT_COLUMNS;
    for (Index p = 0; p < pairs; ++p)
      for (Index j = 0; j < columns; j += PRODUCT_COLUMNS) {
        const bool two = PAIR * p + 1 < inner;
        const Index width = std::min(PRODUCT_COLUMNS, columns - j);
        float* row = to + j / PRODUCT_COLUMNS * panel + p * PRODUCT_COLUMNS;
        pair_rows(head.row(PAIR * p) + j / PAIR,
                  two ? head.row(PAIR * p + 1) + j / PAIR : nullptr, width, row);
        std::fill(row + width, row + PRODUCT_COLUMNS, 0.0f);
      }
    return {{to, PRODUCT_COLUMNS, 1}, panel};
  }
  Right from(Index row) const { return {b.from(row, 0), panel}; }
};

// c[rows, columns] (+)= a[rows, inner] b[inner, columns], in sums of the length of other products.
void multiply(const SmallTiles* kinds, Matrix a, Right right, Index rows, Index columns,
              Index inner, Write c, bool add) {
  const Index cuts = ceil_div(inner, LONGEST_SUM), tiles = ceil_div(rows, SMALL_ROWS);
  const Index least = rows / tiles, larger = rows % tiles;  // so many tiles have a row more
  for (Index cut = 0; cut < cuts; ++cut) {
    const Part along = part(inner, cuts, cut);
    Matrix b = right.b.from(along.begin, 0);
    for (Index j = 0; j < columns; j += PRODUCT_COLUMNS, b.data += right.panel)
      for (Index i = 0, row = 0; i < tiles; ++i) {
        const Index high = least + (i < larger);
        small_block(high, std::min(PRODUCT_COLUMNS, columns - j), along.size,
                    a.from(row, along.begin), b, c.row(row) + j, c.step, add || cut > 0, kinds);
        row += high;
      }
  }
}

// What a thread needs beside the tensors.
struct Room {
  Index unit, step;  // numbers of a unit; from row to row of scores
  const SmallTiles* kinds;
  float *scores, *grads, *turned_keys, *turned_values, *keys, *values, *queries, *results;
  // Of 16 bits: rows of pairs; pairs of two rows, of scores and of grads; results in float32 of a block,
  // two of them, and gradients of all keys and values.
  float *rounded, *score_pairs, *grad_pairs, *sums[2], *key_sums, *value_sums;
  Index depth, value_depth;  // in whole panels
  Index size = 0;            // of all

  Room(const AbeleAttention& all, float* memory)
      : unit(unit_of(all)),
        step(in_panels(all.keys)),
        kinds(unit == PAIR ? pair_tiles() : SMALL_TILES<Floats>),
        depth(in_panels(all.depth)),
        value_depth(in_panels(all.value_depth)) {
    const auto take = [&](Index floats) {
      size += floats;
      return memory == nullptr ? nullptr : memory + size - floats;
    };
    const bool narrow = unit == PAIR;
    const Index most = narrow ? QUERIES * std::max(depth, value_depth) : 0;
    scores = take(QUERIES * step), grads = take(QUERIES * step);
    turned_keys = take(units(all.depth) * step), turned_values = take(units(all.value_depth) * step);
    keys = take(units(all.keys) * depth), values = take(units(all.keys) * value_depth);
    queries = take(units(QUERIES) * depth), results = take(units(QUERIES) * value_depth);
    rounded = take(narrow ? QUERIES / PAIR * step : 0);
    score_pairs = take(narrow ? QUERIES / PAIR * step : 0);
    grad_pairs = take(narrow ? QUERIES / PAIR * step : 0);
    sums[0] = take(most), sums[1] = take(most);
    key_sums = take(narrow ? all.keys * depth : 0);
    value_sums = take(narrow ? all.keys * value_depth : 0);
  }
  Index units(Index numbers) const { return ceil_div(numbers, unit); }
};

// Parts of a block's queries, of which one begins with `begin`: with `causal` they see different keys. A
// pair of queries is in one part.
template <class Run>
void for_parts(const AbeleAttention& all, Part block, Run run) {
  const Index parts = all.causal ? ceil_div(block.size, SMALL_ROWS) : 1, unit = unit_of(all);
  for (Index i = 0; i < parts; ++i) {
    Part some = part(ceil_div(block.size, unit), parts, i);
    some.begin *= unit, some.size = std::min(some.size * unit, block.size - some.begin);
    run(some, seen(all, block.begin + some.begin + some.size - 1));
  }
}

// Rows of scores, or of their gradients, as a left factor: rounded to 16 bits where units are pairs. With
// `pairs`, also the pairs of two rows each.
Matrix as_factor(const AbeleAttention& all, Part block, const Room& room, float* rows,
                 float* pairs) {
  if (room.unit == 1) return {rows, room.step, 1};
  const Index step = room.step / PAIR;
  for_parts(all, block, [&](Part some, Index width) {
    for (Index i = some.begin; i < some.begin + some.size; ++i)
      round_to_bfloat(rows + i * room.step, room.units(width) * PAIR, room.rounded + i * step);
    for (Index i = some.begin; pairs != nullptr && i < some.begin + some.size; i += PAIR) {
      const float* next = i + 1 < block.size ? room.rounded + (i + 1) * step : nullptr;
      pair_rows(room.rounded + i * step, next, width, pairs + i / PAIR * room.step);
    }
  });
  return {room.rounded, step, 1};
}

// Writes rows of results, `factor[i]` times what is in `from`; a null factor is 1.
void round_results(Write from, Index rows, Index columns, float* factors, Write to) {
  for (Index i = 0; i < rows; ++i) {
    float* row = from.row(i);
    for (Index d = 0; factors != nullptr && d < columns; ++d) row[d] *= factors[i];
    round_to_bfloat(row, columns, to.row(i));
  }
}

// values[i] = the largest lane of v[i] for i < count, which is a multiple of 4.
void largest_lanes(const Vec* v, Index count, float* values) {
  const auto larger = [](Quad a, Quad b) { return a > b ? a : b; };
  for (Index i = 0; i < count; i += 4) {
    Quad quads[4];
    for (Index k = 0; k < 4; ++k) {
      const float* lanes = reinterpret_cast<const float*>(v + i + k);
      quads[k] = load_quad(lanes);
      for (int l = 4; l < LANES; l += 4) quads[k] = larger(load_quad(lanes + l), quads[k]);
    }
    transpose(quads[0], quads[1], quads[2], quads[3]);
    store_quad(values + i, larger(larger(quads[0], quads[1]), larger(quads[2], quads[3])));
  }
}

// Whether torch's result for scores of which none is larger than minus infinity is 0. With NaN among
// them it is NaN, but for fewer keys than a vector has, whose scores torch compares one by one.
bool is_nothing(const float* scores, Index count, Index keys) {
  return keys < LANES || std::none_of(scores, scores + count, [](float x) { return x != x; });
}

// Scores become exp(scale (score - largest)), 0 where nothing is seen, for the keys that others of
// the same part see. Also gives the sum of each row, and the logarithm of that of exp(scale score). A
// step for all rows before the next step: no row has to wait for its own last result.
void softmax_scores(const AbeleAttention& all, Part block, const Room& room, float* totals,
                    float* logarithms) {
  const float none = -std::numeric_limits<float>::infinity(), scale = float(all.scale);
  Vec lanes[QUERIES];
  float largest[QUERIES];
  bool nothing[QUERIES];
  for (Index i = 0; i < block.size; ++i) {
    float* row = room.scores + i * room.step;
    const Index count = seen(all, block.begin + i), some = in_vectors(count);
    for (Index j = count; j < some; ++j) row[j] = none;
    lanes[i] = broadcast(none);
    for (Index j = 0; j < some; j += LANES) {
      const Vec value = load(row + j);
      lanes[i] = value > lanes[i] ? value : lanes[i];
    }
  }
  largest_lanes(lanes, ceil_div(block.size, 4) * 4, largest);
  for (Index i = 0; i < block.size; ++i) {
    const float* row = room.scores + i * room.step;
    nothing[i] = largest[i] == none && is_nothing(row, seen(all, block.begin + i), all.keys);
  }
  for_parts(all, block, [&](Part rows, Index width) {
    for (Index i = rows.begin; i < rows.begin + rows.size; ++i) {
      float* row = room.scores + i * room.step;
      const Index some = in_vectors(seen(all, block.begin + i));
      const float most = largest[i];
      lanes[i] = Vec{};
      for (Index j = 0; j < some; j += LANES) {
        for (int l = 0; l < LANES; ++l) row[j + l] = exp_up_to_88((row[j + l] - most) * scale);
        lanes[i] += load(row + j);
      }
      for (Index j = nothing[i] ? 0 : some; j < room.units(width) * room.unit; ++j) row[j] = 0.0f;
    }
  });
  sum_lanes(lanes, block.size, totals);
  for (Index i = 0; i < block.size; ++i) {
    if (nothing[i]) totals[i] = 1.0f;
    logarithms[i] = nothing[i] ? 0.0f : largest[i] * scale + std::log(totals[i]);
  }
}

void attend(const AbeleAttention& all, Read q, Read k, Read v, Write y, float* logarithms,
            const Room& room) {
  const Index depth = room.units(all.depth);
  const Right keys = Right::packed(turned(k), depth, all.keys, room.turned_keys);
  const Right values = Right::of(v, room.unit, all.keys, all.value_depth, room.values);
  const Write scores{room.scores, room.step};
  float totals[QUERIES];
  for (Index first = 0; first < all.queries; first += QUERIES) {
    const Part block{first, std::min(QUERIES, all.queries - first)};
    for_parts(all, block, [&](Part rows, Index width) {
      multiply(room.kinds, in_rows(q.from(first + rows.begin)), keys, rows.size, in_vectors(width),
               depth, scores.from(rows.begin), false);
    });
    softmax_scores(all, block, room, totals, logarithms + first);
    const Matrix factor = as_factor(all, block, room, room.scores, nullptr);
    const Write to = room.unit == 1 ? y.from(first) : Write{room.sums[0], room.value_depth};
    for_parts(all, block, [&](Part rows, Index width) {
      multiply(room.kinds, factor.from(rows.begin, 0), values, rows.size, all.value_depth,
               room.units(width), to.from(rows.begin), false);
    });
    for (Index i = 0; i < block.size; ++i) totals[i] = 1.0f / totals[i];
    if (room.unit == PAIR) {
      round_results(to, block.size, all.value_depth, totals, y.from(first));
      continue;
    }
    for (Index i = 0; i < block.size; ++i)
      for (Index d = 0; d < all.value_depth; ++d) to.row(i)[d] *= totals[i];
  }
}

// The sum over the depth of gradient times result, of each query.
void weigh(const AbeleAttention& all, Part block, Read grad, Read y, const Room& room,
           float* weighted) {
  const Index whole = all.value_depth / LANES * LANES;
  Vec lanes[QUERIES];
  for (Index i = 0; i < block.size; ++i) {
    const float *g = grad.row(block.begin + i), *result = y.row(block.begin + i);
    if (room.unit == PAIR) {
      widen<Bfloat>(g, all.value_depth, room.sums[0]);
      widen<Bfloat>(result, all.value_depth, room.sums[1]);
      g = room.sums[0], result = room.sums[1];
    }
    lanes[i] = Vec{};
    for (Index d = 0; d < whole; d += LANES) lanes[i] += load(g + d) * load(result + d);
    for (Index d = whole; d < all.value_depth; ++d) lanes[i][d - whole] += g[d] * result[d];
  }
  sum_lanes(lanes, block.size, weighted);
}

// Probabilities from scores, and the gradients of scores from those of probabilities.
void score_gradients(const AbeleAttention& all, Part block, const float* weighted,
                     const float* logarithms, const Room& room) {
  const float scale = float(all.scale);
  for_parts(all, block, [&](Part rows, Index width) {
    for (Index i = rows.begin; i < rows.begin + rows.size; ++i) {
      float *row = room.scores + i * room.step, *grads = room.grads + i * room.step;
      const Index count = seen(all, block.begin + i);
      const float logarithm = logarithms[i], weight = weighted[i];
      for (Index j = 0; j < count; j += LANES)
        for (int l = 0; l < LANES; ++l) {
          const float p = exp_up_to_88(row[j + l] * scale - logarithm);
          row[j + l] = p;
          grads[j + l] = p * (grads[j + l] - weight) * scale;
        }
      for (Index j = count; j < room.units(width) * room.unit; ++j) row[j] = grads[j] = 0.0f;
    }
  });
}

struct Gradients {
  Write q, k, v;
};

// Those of keys and values from a block of queries.
void key_gradients(const AbeleAttention& all, Part block, Read q, Read grad, Gradients to,
                   bool added, const Room& room) {
  const Right queries =
      Right::of(q.from(block.begin), room.unit, block.size, all.depth, room.queries);
  const Right results =
      Right::of(grad.from(block.begin), room.unit, block.size, all.value_depth, room.results);
  const float* grads = room.unit == PAIR ? room.grad_pairs : room.grads;
  const float* scores = room.unit == PAIR ? room.score_pairs : room.scores;
  const auto add = [&](Part keys, Index first) {  // of what queries from `first` on see
    const Index begin = first / room.unit, inner = room.units(block.size) - begin;
    const Index place = begin * room.step + keys.begin;
    multiply(room.kinds, {grads + place, 1, room.step}, queries.from(begin), keys.size, all.depth,
             inner, to.k.from(keys.begin), added);
    multiply(room.kinds, {scores + place, 1, room.step}, results.from(begin), keys.size,
             all.value_depth, inner, to.v.from(keys.begin), added);
  };
  const Index width = seen(all, block.begin + block.size - 1);
  const Index before = all.causal ? std::min(block.begin, width) : width;
  if (before > 0) add({0, before}, 0);
  for_parts(all, block, [&](Part rows, Index) {
    const Index key = block.begin + rows.begin;
    if (before < width && key < width) add({key, std::min(rows.size, width - key)}, rows.begin);
  });
}

// A block of queries: their gradients, and what they add to those of keys and values.
void block_backward(const AbeleAttention& all, Part block, Read grad, Read q, Read y,
                    const float* logarithms, Right keys, Right turned_keys, Right turned_values,
                    Gradients to, bool added, const Room& room) {
  const Write scores{room.scores, room.step}, grads{room.grads, room.step};
  const Index first = block.begin;
  float weighted[QUERIES];
  for_parts(all, block, [&](Part rows, Index width) {
    const Index columns = in_vectors(width), begin = first + rows.begin;
    multiply(room.kinds, in_rows(q.from(begin)), turned_keys, rows.size, columns,
             room.units(all.depth), scores.from(rows.begin), false);
    multiply(room.kinds, in_rows(grad.from(begin)), turned_values, rows.size, columns,
             room.units(all.value_depth), grads.from(rows.begin), false);
  });
  weigh(all, block, grad, y, room, weighted);
  score_gradients(all, block, weighted, logarithms + first, room);
  if (room.unit == PAIR) as_factor(all, block, room, room.scores, room.score_pairs);
  const Matrix factor = as_factor(all, block, room, room.grads, room.grad_pairs);
  for_parts(all, block, [&](Part rows, Index width) {
    multiply(room.kinds, factor.from(rows.begin, 0), keys, rows.size, all.depth, room.units(width),
             to.q.from(rows.begin), false);
  });
  key_gradients(all, block, q, grad, to, added, room);
}

void attend_backward(const AbeleAttention& all, Read grad, Read q, Read k, Read v, Read y,
                     const float* logarithms, Gradients to, const Room& room) {
  const Index blocks = ceil_div(all.queries, QUERIES), far = seen(all, all.queries - 1);
  const bool narrow = room.unit == PAIR;
  Gradients sums = to;
  if (narrow)
    sums = {{room.sums[0], room.depth},
            {room.key_sums, room.depth},
            {room.value_sums, room.value_depth}};
  for (Index j = far; j < all.keys; ++j) {  // nobody saw these
    std::fill_n(sums.k.row(j), all.depth, 0.0f);
    std::fill_n(sums.v.row(j), all.value_depth, 0.0f);
  }
  const Right turned_keys =
      Right::packed(turned(k), room.units(all.depth), all.keys, room.turned_keys);
  const Right values =
      Right::packed(turned(v), room.units(all.value_depth), all.keys, room.turned_values);
  const Right keys = Right::of(k, room.unit, all.keys, all.depth, room.keys);
  // The last block sees the most keys, so that the others add to what it has written.
  for (Index number = blocks - 1; number >= 0; --number) {
    const Index first = number * QUERIES;
    const Part block{first, std::min(QUERIES, all.queries - first)};
    if (!narrow) sums.q = to.q.from(first);
    block_backward(all, block, grad, q, y, logarithms, keys, turned_keys, values, sums,
                   number < blocks - 1, room);
    if (narrow) round_results(sums.q, block.size, all.depth, nullptr, to.q.from(first));
  }
  if (!narrow) return;
  round_results(sums.k, all.keys, all.depth, nullptr, to.k);
  round_results(sums.v, all.keys, all.value_depth, nullptr, to.v);
}

// Calls run(task, whether another one follows, room) for the heads of all samples.
template <class Run>
int for_heads(const AbeleAttention& all, int threads, Run run) {
  return guarded([&](Scratch& memory) {
    const Index tasks = all.samples * all.heads;
    const int teams = static_cast<int>(std::min<Index>(tasks, threads));
    const Each<float> work = memory.each<float>(Room(all, nullptr).size, teams);
    for_each(teams, teams, [&](Index thread) {
      const Part some = part(tasks, teams, thread);
      const Room room(all, work.of(thread));
      for (Index i = some.begin; i < some.begin + some.size; ++i)
        run(i, i + 1 < some.begin + some.size, room);
    });
  });
}

}  // namespace
}  // namespace abele

using namespace abele;

int abele_attention(const AbeleAttention* attention, const AbeleSteps* steps, const void* q,
                    const void* k, const void* v, void* y, float* logarithms, int threads) {
  const AbeleAttention& all = *attention;
  return for_heads(all, threads, [&](Index task, bool more, const Room& room) {
    if (more) {
      fetch(nth(q, steps[0], all, task + 1), all.queries, room.units(all.depth));
      fetch(nth(k, steps[1], all, task + 1), all.keys, room.units(all.depth));
      fetch(nth(v, steps[2], all, task + 1), all.keys, room.units(all.value_depth));
    }
    attend(all, nth(q, steps[0], all, task), nth(k, steps[1], all, task),
           nth(v, steps[2], all, task), nth(y, steps[3], all, task),
           logarithms + task * all.queries, room);
  });
}

int abele_attention_backward(const AbeleAttention* attention, const AbeleSteps* steps,
                             const void* grad, const void* q, const void* k, const void* v,
                             const void* y, const float* logarithms, void* grad_q, void* grad_k,
                             void* grad_v, int threads) {
  const AbeleAttention& all = *attention;
  return for_heads(all, threads, [&](Index task, bool more, const Room& room) {
    if (more) {
      fetch(nth(grad, steps[0], all, task + 1), all.queries, room.units(all.value_depth));
      fetch(nth(q, steps[1], all, task + 1), all.queries, room.units(all.depth));
      fetch(nth(k, steps[2], all, task + 1), all.keys, room.units(all.depth));
      fetch(nth(v, steps[3], all, task + 1), all.keys, room.units(all.value_depth));
      fetch(nth(y, steps[4], all, task + 1), all.queries, room.units(all.value_depth));
    }
    attend_backward(all, nth(grad, steps[0], all, task), nth(q, steps[1], all, task),
                    nth(k, steps[2], all, task), nth(v, steps[3], all, task),
                    nth(y, steps[4], all, task), logarithms + task * all.queries,
                    {nth(grad_q, steps[5], all, task), nth(grad_k, steps[6], all, task),
                     nth(grad_v, steps[7], all, task)},
                    room);
  });
}
