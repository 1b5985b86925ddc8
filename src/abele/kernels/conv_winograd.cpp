// Convolutions of channels-last images with many channels and kernels of 3x3, by Winograd's way.
//
// Tiles of the images become 16 or 36 matrices of [tiles][channels], which are multiplied by those of
// the weights; see winograd.h. Forward takes a block of tiles through all steps while it is in cache.
#include <algorithm>

#include "channel_sums.h"
#include "images.h"
#include "winograd_product.h"
#include "winograd_tiles.h"

namespace abele::winograd::ABELE_LENGTH {
namespace {

// Tiles of the small form that a thread takes through all steps at once.
constexpr Index BLOCK = ABELE_WINOGRAD_BLOCK;
// Threads with fewer tiles each share weights of so many floats: reading them would take longer than
// multiplying.
constexpr Index FEW_TILES = 32, MANY_WEIGHTS = 1 << 18;
// Of the gradient of weights: floats of transformed tiles that stay in cache, tiles that they are
// at least and at most, floats of all sums, and how many sums.
constexpr Index CHUNK_FLOATS = ABELE_WINOGRAD_CHUNK_FLOATS;
constexpr Index LEAST_CHUNK = ABELE_WINOGRAD_LEAST_CHUNK, MOST_CHUNK = ABELE_WINOGRAD_MOST_CHUNK;
constexpr Index PARTS_FLOATS = ABELE_WINOGRAD_PARTS_FLOATS, MOST_PARTS = ABELE_WINOGRAD_MOST_PARTS;
// Channels of weights that are transformed at once.
constexpr Index SEGMENT = 16;

struct Packing {
  const float* weight;
  Index in, out;  // of the pass: on the way back they have changed places
  bool back;

  // [SEGMENT channels][9] registers of kernels, one output channel in each lane.
  void kernels(Index first_out, Index first_in, Index count, Vec* to) const {
    const Index valid = std::min<Index>(LANES, out - first_out);
    if (!back) {
      const float* from = weight + (first_out * in + first_in) * TAPS;
      to_lanes(from, in * TAPS, valid, count * TAPS, to);
      return;
    }
    for (Index i = 0; i < count; ++i) {
      const float* from = weight + ((first_in + i) * out + first_out) * TAPS;
      to_lanes(from, TAPS, valid, TAPS, to + i * TAPS);
      std::reverse(to + i * TAPS, to + (i + 1) * TAPS);
    }
  }
};

template <class Form>
Weights pack(const Packing& from, int threads, float* packed) {
  const Index in = from.in, out = from.out, segments = ceil_div(in, SEGMENT);
  for_each(registers(out) * segments, threads, [&](Index task) {
    const Index first_out = task / segments * LANES, first_in = task % segments * SEGMENT;
    const Index count = std::min(SEGMENT, in - first_in), panel = first_out / PANEL * PANEL;
    const Index columns = std::min(PANEL, padded(out) - panel);
    Vec kernels[SEGMENT * TAPS], transformed[Form::POINTS];
    from.kernels(first_out, first_in, count, kernels);
    for (Index i = 0; i < count; ++i) {
      transform_kernel<Form>(kernels + i * TAPS, transformed);
      float* to = packed + panel * in + (first_in + i) * columns + first_out - panel;
      for (Index p = 0; p < Form::POINTS; ++p) store(to + p * padded(out) * in, transformed[p]);
    }
  });
  return {in, out, packed};
}
Weights pack(const Packing& from, int threads, Scratch& scratch) {
  return pack<Small>(from, threads, scratch.take<float>(Small::POINTS * padded(from.out) * from.in));
}

// As many blocks as keep all threads busy for the same time.
Index blocks_of(Index tiles, Index most, int threads) {
  return std::min(ceil_div(ceil_div(tiles, most), threads) * threads, tiles);
}

template <class Form, class T>
void convolve(const Tiles& from, const Tiles& to, const T* x, const Weights& weights,
              const Finish& finish, T* y, int threads, Scratch& scratch) {
  constexpr Index POINTS = Form::POINTS;
  if (to.count() == 0) return;
  Index blocks = blocks_of(to.count(), BLOCK * Small::POINTS / POINTS, threads);
  // Fewer tiles are summed in another order: bits would depend on the number of threads.
  if (is_shallow(weights)) blocks = std::min(blocks, std::max<Index>(to.count() / HIGH_ROWS, 1));
  if (to.count() < FEW_TILES * threads && POINTS * weights.in * weights.out >= MANY_WEIGHTS)
    blocks = 1;
  const Index most = ceil_div(to.count(), blocks), panels = ceil_div(padded(to.channels), PANEL);
  const Index inputs = POINTS * matrix_size(most, from.channels);
  const Index products = POINTS * matrix_size(most, to.channels);
  const Index rooms = blocks_per_thread(blocks, threads) ? threads : 1;
  float* memory = scratch.take<float>(rooms * (inputs + products));
  const float* zeros = scratch.zeros<float>(padded(from.channels));
  float* nowhere = scratch.take<float>(threads * padded(to.channels));
  with_teams(blocks, threads, [&](const Team& team, Index thread) {
    float* mine = memory + (team.size == 1 ? thread % rooms : 0) * (inputs + products);
    for (Index block = team.blocks.begin; block < team.end(); ++block) {
      const auto [first, count] = part(to.count(), blocks, block);
      const Index matrix = matrix_size(count, from.channels);
      const Index of_products = matrix_size(count, to.channels);
      const auto [at, own] = part(count, team.size, team.rank);
      transform_inputs<Form>(from, x, zeros, first + at, own, matrix,
                             mine + at * pitch(from.channels));
      team.wait();
      team.share(POINTS * panels, [&, count = count](Index task) {
        const Index p = task / panels;
        multiply(weights, p, task % panels * PANEL, mine + p * matrix, count,
                 mine + inputs + p * of_products);
      });
      team.wait();
      write_tiles<Form>(to, mine + inputs + at * pitch(to.channels), of_products, first + at, own,
                        finish, nowhere + thread * padded(to.channels), y);
      team.wait();
    }
  });
}

// The tiles of a pass that reads images with `pad` rows and columns of zeros around.
Tiles inputs_of(const Conv& conv, bool back, Index edge = Small::EDGE) {
  const Index height = back ? conv.in_height : conv.out_height;
  const Index width = back ? conv.in_width : conv.out_width;
  const Index rows = ceil_div(height, edge), cols = ceil_div(width, edge);
  if (back)
    return {conv.images, conv.out_height, conv.out_width,      conv.out_channels,
            rows,        cols,            2 - conv.pad_height, edge};
  return {conv.images, conv.in_height, conv.in_width,   conv.in_channels,
          rows,        cols,           conv.pad_height, edge};
}
Tiles outputs_of(const Conv& conv, bool back, Index edge = Small::EDGE) {
  Tiles tiles = inputs_of(conv, !back, edge);
  tiles.rows = ceil_div(tiles.height, edge), tiles.cols = ceil_div(tiles.width, edge);
  tiles.shift = 0;
  return tiles;
}

// How the sum over all tiles that gives the gradient of the weights is cut. Parts have sums of their
// own, so that threads need not wait for each other; chunks go through all steps while they are in
// cache. Both follow from the sizes alone: any number of threads gives the same bits.
struct Cuts {
  static constexpr Index POINTS = Small::POINTS;
  Tiles inputs, grads;
  Index in, out, parts, chunk;

  explicit Cuts(const Conv& conv)
      : inputs(inputs_of(conv, false)), grads(outputs_of(conv, false)),
        in(conv.in_channels), out(conv.out_channels) {
    // Each chunk reads and writes all sums.
    const Index floats = std::max(CHUNK_FLOATS, size());
    chunk = std::clamp(floats / (POINTS * (pitch(in) + pitch(out))), LEAST_CHUNK, MOST_CHUNK);
    parts = std::clamp<Index>(PARTS_FLOATS / size(), 1, MOST_PARTS);
    parts = std::min(parts, ceil_div(grads.count(), chunk));
    // A chunk has no more tiles than a part: no memory is taken for others.
    chunk = std::min(chunk, std::max<Index>(ceil_div(grads.count(), parts), 1));
  }
  // Of transformed tiles: threads that share a part share these, too.
  Index rooms(int threads) const { return blocks_per_thread(parts, threads) ? threads : 1; }
  // Of the sums of a part, and of the transformed tiles of a chunk.
  Index size() const { return POINTS * in * padded(out); }
  Index input_matrix() const { return matrix_size(chunk, in); }
  Index grad_matrix() const { return matrix_size(chunk, out); }
  Index room() const { return POINTS * (input_matrix() + grad_matrix()); }
};

// The sums of tiles [first, end) as [16][in][padded out].
void sum_tiles(const Cuts& cuts, const Team& team, Index first, Index end, const float* grad,
               const float* x, const float* zeros, float* room, float* sums) {
  const Index in = cuts.in, out = cuts.out, panels = ceil_div(padded(out), PANEL);
  float *v = room, *w = room + Cuts::POINTS * cuts.input_matrix();
  for (Index begin = first; begin < end; begin += cuts.chunk) {
    const Index size = std::min(cuts.chunk, end - begin);
    const Index pieces = team.size == 1 ? 1 : ceil_div(size, TILE_ROWS);
    team.share(pieces, [&](Index piece) {
      const auto [at, count] = part(size, pieces, piece);
      transform_inputs<Small>(cuts.inputs, x, zeros, begin + at, count, cuts.input_matrix(),
                       v + at * pitch(in));
      transform_gradients(cuts.grads, grad, zeros, begin + at, count, cuts.grad_matrix(),
                          w + at * pitch(out));
    });
    team.wait();
    team.share(Cuts::POINTS * panels, [&](Index task) {
      const Index p = task / panels, column = task % panels * PANEL;
      const Index columns = std::min(PANEL, padded(out) - column);
      const MatrixTile tile = {size, v + p * cuts.input_matrix(), 1, pitch(in),
                               w + p * cuts.grad_matrix() + column, pitch(out),
                               sums + p * in * padded(out) + column, padded(out), 0,
                               begin > first};
      multiply_rows(tile, in, columns / LANES);
    });
    team.wait();
  }
}

// Those of all tiles.
const float* summed_products(const Cuts& cuts, const float* grad, const float* x, int threads,
                             Scratch& scratch) {
  const Index parts = cuts.parts, size = cuts.size();
  float* sums = scratch.take<float>(parts * size);
  float* rooms = scratch.take<float>(cuts.rooms(threads) * cuts.room());
  const float* zeros = scratch.zeros<float>(std::max(padded(cuts.in), padded(cuts.out)));
  with_teams(parts, threads, [&](const Team& team, Index thread) {
    for (Index i = team.blocks.begin; i < team.end(); ++i) {
      const auto [first, count] = part(cuts.grads.count(), parts, i);
      float* room = rooms + (team.size == 1 ? thread : 0) * cuts.room();
      sum_tiles(cuts, team, first, first + count, grad, x, zeros, room, sums + i * size);
    }
  });
  for_each(Cuts::POINTS * cuts.in, threads, [&](Index row) {
    for (Index i = 1; i < parts; ++i) {
      const Index at = row * padded(cuts.out);
      for (Index o = at; o < at + padded(cuts.out); ++o) sums[o] += sums[i * size + o];
    }
  });
  return sums;
}

void pack_weights(const Conv& conv, const float* weight, float* packed, int points, int threads) {
  const auto run = points == Large::POINTS ? pack<Large> : pack<Small>;
  run({weight, conv.in_channels, conv.out_channels, false}, threads, packed);
}

void forward_packed(const Conv& conv, const void* x, const float* packed, const float* bias,
                    void* y, bool adds, int points, int type, int threads, Scratch& scratch) {
  const Weights weights = {conv.in_channels, conv.out_channels, packed};
  float* start = scratch.zeros<float>(padded(conv.out_channels));
  if (bias != nullptr) std::copy(bias, bias + conv.out_channels, start);
  const auto run = [&](auto form, auto image) {
    using Form = decltype(form);
    using T = decltype(image);
    convolve<Form>(inputs_of(conv, false, Form::EDGE), outputs_of(conv, false, Form::EDGE),
                   static_cast<const T*>(x), weights, {start, static_cast<float>(conv.slope), adds},
                   static_cast<T*>(y), threads, scratch);
  };
  if (type == ABELE_BFLOAT16) return run(Large(), uint16_t());
  points == Large::POINTS ? run(Large(), float()) : run(Small(), float());
}

void forward(const Conv& conv, const float* x, const float* weight, const float* bias, float* y,
             int threads, Scratch& scratch) {
  const Weights weights = pack({weight, conv.in_channels, conv.out_channels, false}, threads,
                               scratch);
  forward_packed(conv, x, weights.data, bias, y, false, Small::POINTS, ABELE_FLOAT32, threads,
                 scratch);
}

void gradient_of_images(const Conv& conv, const float* grad, const float* weight, float* grad_x,
                        int threads, Scratch& scratch) {
  const Weights weights = pack({weight, conv.out_channels, conv.in_channels, true}, threads,
                               scratch);
  const float* start = scratch.zeros<float>(padded(conv.in_channels));
  convolve<Small>(inputs_of(conv, true), outputs_of(conv, true), grad, weights,
                  {start, 1.0f, false}, grad_x, threads, scratch);
}

void gradient_of_weight(const Conv& conv, const float* grad, const float* x, float* result,
                        int threads, Scratch& scratch) {
  if (conv.images == 0) return std::fill(result, result + conv.weights(), 0.0f);
  const float* sums = summed_products(Cuts(conv), grad, x, threads, scratch);
  const Index in = conv.in_channels, out = conv.out_channels, matrix = in * padded(out);
  for_each(registers(out), threads, [&](Index block) {
    for (Index first = 0; first < in; first += SEGMENT) {
      const Index count = std::min(SEGMENT, in - first);
      Vec products[Cuts::POINTS], kernels[SEGMENT * TAPS];
      for (Index i = 0; i < count; ++i) {
        const float* from = sums + (first + i) * padded(out) + block * LANES;
        for (int p = 0; p < Cuts::POINTS; ++p) products[p] = load(from + p * matrix);
        transform_kernel_gradient(products, kernels + i * TAPS);
      }
      from_lanes(kernels, count * TAPS, result + (block * LANES * in + first) * TAPS, in * TAPS,
                 std::min<Index>(LANES, out - block * LANES));
    }
  });
}

}  // namespace

const Functions FUNCTIONS = {forward, gradient_of_images, gradient_of_weight, pack_weights,
                             forward_packed};

}  // namespace abele::winograd::ABELE_LENGTH

#if !defined(ABELE_HALF_REGISTERS)
using namespace abele;

namespace {

bool has_code(const Conv& conv) {
  return conv.channels_last && conv.kernel_height == 3 && conv.kernel_width == 3 &&
         conv.stride_height == 1 && conv.stride_width == 1 &&
         conv.pad_height == conv.pad_width && conv.pad_height >= 0 && conv.pad_height <= 2 &&
         conv.out_height > 0 && conv.out_width > 0;
}

// Whether channels fill four fifths of registers of so many on both sides.
bool fill(const Conv& conv, Index lanes) {
  const auto one = [&](Index count) { return ceil_div(count, lanes) * lanes * 4 <= 5 * count; };
  return one(conv.in_channels) && one(conv.out_channels);
}

const winograd::Functions& functions(const Conv& conv) {
#if defined(__AVX512VL__)
  if (!fill(conv, 16) && fill(conv, 8)) return winograd::half_registers::FUNCTIONS;
#endif
  return winograd::whole_registers::FUNCTIONS;
}

}  // namespace

int abele_winograd_forward(const AbeleConv* description, const float* x, const float* weight,
                           const float* bias, float* y, int threads) {
  const Conv conv(*description);
  if (!has_code(conv)) return ABELE_NO_CODE;
  return guarded([&](Scratch& scratch) {
    functions(conv).forward(conv, x, weight, bias, y, threads, scratch);
  });
}

int abele_winograd_pack(const AbeleConv* description, const float* weight, float* packed,
                        int points, int threads) {
  const Conv conv(*description);
  if (!has_code(conv)) return ABELE_NO_CODE;
  functions(conv).pack(conv, weight, packed, points, threads);
  return ABELE_OK;
}

int abele_winograd_packed_forward(const AbeleConv* description, const void* x, const float* packed,
                                  const float* bias, void* y, int adds, int points, int type,
                                  int threads) {
  const Conv conv(*description);
  if (!has_code(conv) || (type != ABELE_FLOAT32 && points != 36)) return ABELE_NO_CODE;
  return guarded([&](Scratch& scratch) {
    functions(conv).forward_packed(conv, x, packed, bias, y, adds != 0, points, type, threads,
                                   scratch);
  });
}

int abele_winograd_backward(const AbeleConv* description, const float* grad, const float* x,
                            const float* weight, float* grad_x, float* grad_weight,
                            float* grad_bias, int threads) {
  const Conv conv(*description);
  if (!has_code(conv)) return ABELE_NO_CODE;
  // The gradients follow each other in the same memory.
  int code = ABELE_OK;
  if (grad_x != nullptr)
    code = guarded([&](Scratch& scratch) {
      functions(conv).gradient_of_images(conv, grad, weight, grad_x, threads, scratch);
    });
  if (code != ABELE_OK) return code;
  return guarded([&](Scratch& scratch) {
    if (grad_weight != nullptr)
      functions(conv).gradient_of_weight(conv, grad, x, grad_weight, threads, scratch);
    if (grad_bias != nullptr)
      channels_last::channel_sums<8>(conv.images * conv.out_height, conv.out_width,
                                     conv.out_channels, grad, grad_bias, threads, scratch);
  });
}
#endif
