// Convolutions of channels-last images with many channels and kernels of 3x3, by Winograd's way.
//
// Tiles of the images become 16 or 36 matrices of [tiles][channels], which are multiplied by those of
// the weights; see winograd.h. Forward takes a block of tiles through all steps while it is in cache.
// bfloat16 images have tiles of 36, whose errors are far below their rounding; sums are float32.
#include <algorithm>

#include "channel_sums.h"
#include "images.h"
#include "winograd_product.h"
#include "winograd_tiles.h"

namespace abele::winograd::ABELE_LENGTH {
namespace {

// Tiles of the small form that a thread takes through all steps at once.
constexpr Index BLOCK = ABELE_WINOGRAD_BLOCK;
// So many tiles at most meet weights of so many floats at least panel by panel, of which each thread has
// so many at least.
constexpr Index FEW_TILES = ABELE_WINOGRAD_FEW_TILES, MANY_WEIGHTS = ABELE_WINOGRAD_MANY_WEIGHTS;
constexpr Index OWN_PANELS = ABELE_WINOGRAD_OWN_PANELS;
// Of the gradient of weights: floats of transformed tiles that stay in cache, tiles that they are
// at least and at most, floats of all sums, and how many sums.
constexpr Index CHUNK_FLOATS = ABELE_WINOGRAD_CHUNK_FLOATS;
constexpr Index LEAST_CHUNK = ABELE_WINOGRAD_LEAST_CHUNK, MOST_CHUNK = ABELE_WINOGRAD_MOST_CHUNK;
constexpr Index PARTS_FLOATS = ABELE_WINOGRAD_PARTS_FLOATS, MOST_PARTS = ABELE_WINOGRAD_MOST_PARTS;
// Of the large form fewer: its sums are larger.
constexpr Index LARGE_PARTS_FLOATS = ABELE_WINOGRAD_LARGE_PARTS_FLOATS;
constexpr Index LARGE_MOST_PARTS = ABELE_WINOGRAD_LARGE_MOST_PARTS;
// Channels of weights that are transformed at once, and input channels of a task.
constexpr Index SEGMENT = 16, TASK_ROWS = ABELE_WINOGRAD_TASK_ROWS;

struct Packing {
  const void* weight;
  Index type, in, out;  // of the pass: on the way back they have changed places
  bool back;

  // [SEGMENT channels][9] registers of kernels, one output channel in each lane.
  void kernels(Index first_out, Index first_in, Index count, Vec* to) const {
    const Index valid = std::min<Index>(LANES, out - first_out), rows = back ? count : valid;
    const Index length = (back ? valid : count) * TAPS, row = (back ? out : in) * TAPS;
    const Index begin = back ? first_in * row + first_out * TAPS : first_out * row + first_in * TAPS;
    const float* from = static_cast<const float*>(weight) + begin;
    float room[LANES * SEGMENT * TAPS];
    if (type == ABELE_BFLOAT16) {
      for (Index r = 0; r < rows; ++r)
        widen<Bfloat>(static_cast<const uint16_t*>(weight) + begin + r * row, length,
                      room + r * length);
      from = room;
    }
    const Index step = from == room ? length : row;
    if (!back) return to_lanes(from, step, valid, length, to);
    for (Index i = 0; i < count; ++i) {
      to_lanes(from + i * step, TAPS, valid, TAPS, to + i * TAPS);
      std::reverse(to + i * TAPS, to + (i + 1) * TAPS);
    }
  }
};

// Transforms `depth` input channels of a register of outputs: to[point][channel], so far apart.
template <class Form>
void pack_some(const Packing& from, Index first_out, Index first_in, Index depth, Index point,
               Index channel, float* to) {
  Vec kernels[SEGMENT * TAPS];
  for (Index begin = 0; begin < depth; begin += SEGMENT) {
    const Index count = std::min(SEGMENT, depth - begin);
    from.kernels(first_out, first_in + begin, count, kernels);
    for (Index i = 0; i < count; ++i, to += channel) {
      const Vec* kernel = kernels + i * TAPS;
      transform<3, Form::SIZE, Form::template kernel<3>, Form::template kernel<1>>(
          [=](int k) { return kernel[k]; }, [=](int p, Vec value) { store(to + p * point, value); });
    }
  }
}

template <class Form>
Weights pack(const Packing& from, int threads, float* packed) {
  const Index in = from.in, out = from.out;
  for_each(registers(out), threads, [&](Index task) {
    const Index first = task * LANES, panel = first / PANEL * PANEL;
    const Index columns = std::min(PANEL, padded(out) - panel);
    pack_some<Form>(from, first, 0, in, padded(out) * in, columns,
                    packed + panel * in + first - panel);
  });
  return {in, out, packed};
}

// The products of tiles with a panel of weights, which are packed channel by channel, in memory of
// POINTS * (DEPTH * PANEL + LANES) floats: c[point][tile][columns of the panel].
template <class Form>
void multiply_unpacked(const Packing& weights, Index first, const float* a, Index matrix, Index count,
                       float* room, float* c, Index of_products) {
  const Index columns = std::min(PANEL, padded(weights.out) - first);
  for (Index k = 0; k < weights.in; k += DEPTH) {
    // Matrices that lie a power of two apart would share a cache set.
    const Index depth = std::min(DEPTH, weights.in - k), point = depth * columns + LANES;
    for (Index lanes = 0; lanes < columns; lanes += LANES)
      pack_some<Form>(weights, first + lanes, k, depth, point, columns, room + lanes);
    for (Index p = 0; p < Form::POINTS; ++p)
      multiply_rows({depth, a + p * matrix + k, pitch(weights.in), 1, room + p * point, columns,
                     c + p * of_products, columns, 0, k > 0},
                    count, columns / LANES);
  }
}

// Few tiles and many weights: each thread computes panels of output channels from all tiles. It packs
// the weights of these alone, and transforms the tiles once more, which is less than threads on distant
// cores would read of each other.
template <class Form, class T>
void convolve_by_panels(const Tiles& from, const Tiles& to, const T* x, const Packing& weights,
                        const Finish& finish, T* y, int threads, Scratch& scratch) {
  constexpr Index POINTS = Form::POINTS;
  const Index tiles = to.count(), panels = ceil_div(to.channels, PANEL);
  const Index matrix = matrix_size(tiles, from.channels), of_products = tiles * PANEL + LANES;
  const Index of_weights = std::min(DEPTH, from.channels) * PANEL + LANES;
  const Index room = POINTS * (matrix + of_products + of_weights) + PANEL;
  float* memory = scratch.take<float>(threads * room);
  const float* zeros = scratch.zeros<float>(padded(from.channels));
  on_threads(threads, [&](Index thread, Index size) {
    const auto [first, count] = part(panels, size, thread);
    float *inputs = memory + thread * room, *products = inputs + POINTS * matrix;
    float *packed = products + POINTS * of_products, *nowhere = packed + POINTS * of_weights;
    if (count > 0) transform_tiles<Form, Inputs>(from, x, zeros, 0, tiles, matrix, inputs);
    for (Index panel = first * PANEL; panel < (first + count) * PANEL; panel += PANEL) {
      multiply_unpacked<Form>(weights, panel, inputs, matrix, tiles, packed, products, of_products);
      write_tiles<Form>(to, std::min(PANEL, to.channels - panel), products, of_products, 0, tiles,
                        {finish.bias + panel, finish.slope, finish.adds}, nowhere, y + panel);
    }
  });
}

// As many blocks as keep all threads busy for the same time.
Index blocks_of(Index tiles, Index most, int threads) {
  return std::min(ceil_div(ceil_div(tiles, most), threads) * threads, tiles);
}

template <class Form, class T>
void convolve(const Tiles& from, const Tiles& to, const T* x, const Packing& unpacked,
              const float* packed, const Finish& finish, T* y, int threads, Scratch& scratch) {
  constexpr Index POINTS = Form::POINTS;
  if (to.count() == 0) return;
  Weights weights = {unpacked.in, unpacked.out, packed};
  const Index panels = ceil_div(padded(to.channels), PANEL);
  if (packed == nullptr && !is_shallow(weights) && to.count() <= FEW_TILES &&
      panels >= OWN_PANELS * threads && POINTS * weights.in * weights.out >= MANY_WEIGHTS)
    return convolve_by_panels<Form>(from, to, x, unpacked, finish, y, threads, scratch);
  Index blocks = blocks_of(to.count(), BLOCK * Small::POINTS / POINTS, threads);
  // Fewer tiles are summed in another order: bits would depend on the number of threads.
  if (is_shallow(weights)) blocks = std::min(blocks, std::max<Index>(to.count() / HIGH_ROWS, 1));
  const Index most = ceil_div(to.count(), blocks);
  const Index inputs = POINTS * matrix_size(most, from.channels);
  const Index products = POINTS * matrix_size(most, to.channels);
  const Index rooms = blocks_per_thread(blocks, threads) ? threads : 1;
  float* memory = scratch.take<float>(rooms * (inputs + products));
  const float* zeros = scratch.zeros<float>(padded(from.channels));
  float* nowhere = scratch.take<float>(threads * padded(to.channels));
  if (packed == nullptr)
    weights = pack<Form>(unpacked, threads,
                         scratch.take<float>(POINTS * padded(weights.out) * weights.in));
  with_teams(blocks, threads, [&](const Team& team, Index thread) {
    float* mine = memory + (team.size == 1 ? thread % rooms : 0) * (inputs + products);
    for (Index block = team.blocks.begin; block < team.end(); ++block) {
      const auto [first, count] = part(to.count(), blocks, block);
      const Index matrix = matrix_size(count, from.channels);
      const Index of_products = matrix_size(count, to.channels);
      const auto [at, own] = part(count, team.size, team.rank);
      transform_tiles<Form, Inputs>(from, x, zeros, first + at, own, matrix,
                                    mine + at * pitch(from.channels));
      team.wait();
      team.share(POINTS * panels, [&, count = count](Index task) {
        const Index p = task / panels;
        multiply(weights, p, task % panels * PANEL, mine + p * matrix, count,
                 mine + inputs + p * of_products);
      });
      team.wait();
      write_tiles<Form>(to, to.channels, mine + inputs + at * pitch(to.channels), of_products,
                        first + at, own, finish, nowhere + thread * padded(to.channels), y);
      team.wait();
    }
  });
}

// The tiles of a pass that reads images with `pad` rows and columns of zeros around.
Tiles inputs_of(const Conv& conv, bool back, Index edge) {
  const Index height = back ? conv.in_height : conv.out_height;
  const Index width = back ? conv.in_width : conv.out_width;
  const Index rows = ceil_div(height, edge), cols = ceil_div(width, edge);
  if (back)
    return {conv.images, conv.out_height, conv.out_width,      conv.out_channels,
            rows,        cols,            2 - conv.pad_height, edge};
  return {conv.images, conv.in_height, conv.in_width,   conv.in_channels,
          rows,        cols,           conv.pad_height, edge};
}
Tiles outputs_of(const Conv& conv, bool back, Index edge) {
  Tiles tiles = inputs_of(conv, !back, edge);
  tiles.rows = ceil_div(tiles.height, edge), tiles.cols = ceil_div(tiles.width, edge);
  tiles.shift = 0;
  return tiles;
}

void write_kernels(const Vec* kernels, Index count, float* to, Index step, Index valid) {
  from_lanes(kernels, count, to, step, valid);
}
void write_kernels(const Vec* kernels, Index count, uint16_t* to, Index step, Index valid) {
  float rows[LANES * SEGMENT * TAPS];
  from_lanes(kernels, count, rows, count, valid);
  for (Index i = 0; i < valid; ++i) narrow<Bfloat>(rows + i * count, count, to + i * step);
}

// How the sum over all tiles that gives the gradient of the weights is cut. Parts have sums of their
// own, so that threads need not wait for each other; chunks go through all steps while they are in
// cache. Both follow from the sizes alone: any number of threads gives the same bits. Tasks are some
// input channels with a panel of output channels.
template <class Form>
struct Cuts {
  static constexpr Index POINTS = Form::POINTS;
  Tiles inputs, grads;
  Index in, out, blocks, rows, panels, parts, chunk;

  explicit Cuts(const Conv& conv)
      : inputs(inputs_of(conv, false, Form::EDGE)), grads(outputs_of(conv, false, Form::EDGE)),
        in(conv.in_channels), out(conv.out_channels), blocks(ceil_div(in, TASK_ROWS)),
        rows(ceil_div(in, blocks)), panels(ceil_div(out, PANEL)) {
    // Each chunk reads and writes all sums.
    const Index floats = std::max(CHUNK_FLOATS, size());
    const bool large = POINTS == Large::POINTS;
    chunk = std::clamp(floats / (POINTS * (pitch(in) + pitch(out))), LEAST_CHUNK, MOST_CHUNK);
    if (large) chunk = ABELE_WINOGRAD_LARGE_CHUNK;
    parts = std::clamp<Index>((large ? LARGE_PARTS_FLOATS : PARTS_FLOATS) / size(), 1,
                              large ? LARGE_MOST_PARTS : MOST_PARTS);
    parts = std::min(parts, ceil_div(grads.count(), chunk));
    // A chunk has no more tiles than a part: no memory is taken for others.
    chunk = std::min(chunk, std::max<Index>(ceil_div(grads.count(), parts), 1));
  }
  // Of transformed tiles: threads that share a part share these, too.
  Index rooms(int threads) const { return blocks_per_thread(parts, threads) ? threads : 1; }
  // Whether a task's sums are complete when they are first written.
  bool at_once() const { return parts == 1 && chunk >= grads.count(); }
  Index task_size() const { return POINTS * rows * PANEL; }
  // Of the sums of a part, and of the transformed tiles of a chunk.
  Index size() const { return blocks * panels * task_size(); }
  Index input_matrix() const { return matrix_size(chunk, in); }
  Index grad_matrix() const { return matrix_size(chunk, out); }
  Index room() const { return POINTS * (input_matrix() + grad_matrix()); }
};

template <class Form, class T>
struct WeightGradient {
  const Cuts<Form>& cuts;
  const T *grad, *x;
  T* result;
  const float* zeros;

  Part rows_of(Index task) const { return part(cuts.in, cuts.blocks, task / cuts.panels); }
  Index column_of(Index task) const { return task % cuts.panels * PANEL; }
  Index registers_of(Index task) const {
    return std::min(PANEL, padded(cuts.out) - column_of(task)) / LANES;
  }

  // The products of a chunk of tiles.
  void multiply(Index task, const float* room, Index tiles, bool add, float* to) const {
    const Index in = pitch(cuts.in), out = pitch(cuts.out), column = column_of(task);
    const auto [first, rows] = rows_of(task);
    for (Index p = 0; p < Form::POINTS; ++p, to += rows * PANEL) {
      const float* w = room + Form::POINTS * cuts.input_matrix() + p * cuts.grad_matrix();
      multiply_rows({tiles, room + p * cuts.input_matrix() + first, 1, in, w + column, out, to, PANEL,
                     0, add}, rows, registers_of(task));
    }
  }

  // From the sums of all parts.
  void finish(Index task, const float* from) const {
    const Index first = rows_of(task).begin, rows = rows_of(task).size;
    Vec kernels[SEGMENT * TAPS];
    for (Index lanes = 0; lanes < registers_of(task) * LANES; lanes += LANES)
      for (Index begin = 0; begin < rows; begin += SEGMENT) {
        const Index count = std::min(SEGMENT, rows - begin), output = column_of(task) + lanes;
        for (Index i = 0; i < count; ++i) {
          const auto sum = [&](int p) {
            const float* at = from + (p * rows + begin + i) * PANEL + lanes;
            Vec total = load(at);
            for (Index k = 1; k < cuts.parts; ++k) total += load(at + k * cuts.size());
            return total;
          };
          transform<Form::SIZE, 3, Form::template kernel_gradient<Form::SIZE>,
                    Form::template kernel_gradient<1>>(
              sum, [&](int k, Vec value) { kernels[i * TAPS + k] = value; });
        }
        write_kernels(kernels, count * TAPS, result + (output * cuts.in + first + begin) * TAPS,
                      cuts.in * TAPS, std::min<Index>(LANES, cuts.out - output));
      }
  }

  // The sums of tiles [first, end).
  void sum(const Team& team, Index first, Index end, Index thread, float* room, float* to) const {
    float* w = room + Form::POINTS * cuts.input_matrix();
    for (Index begin = first; begin < end; begin += cuts.chunk) {
      const Index size = std::min(cuts.chunk, end - begin);
      const Index pieces = team.size == 1 ? 1 : ceil_div(size, TILE_ROWS);
      team.share(pieces, [&](Index piece) {
        const auto [at, count] = part(size, pieces, piece);
        transform_tiles<Form, Inputs>(cuts.inputs, x, zeros, begin + at, count, cuts.input_matrix(),
                                      room + at * pitch(cuts.in));
        transform_tiles<Form, OutputGradients>(cuts.grads, grad, zeros, begin + at, count,
                                               cuts.grad_matrix(), w + at * pitch(cuts.out));
      });
      team.wait();
      team.share(cuts.blocks * cuts.panels, [&](Index task) {
        float* own = to + (cuts.at_once() ? thread : task) * cuts.task_size();
        multiply(task, room, size, begin > first, own);
        if (cuts.parts == 1 && begin + size == end) finish(task, own);
      });
      team.wait();
    }
  }
};

void pack_weights(const Conv& conv, const float* weight, float* packed, int points, int threads) {
  const auto run = points == Large::POINTS ? pack<Large> : pack<Small>;
  run({weight, ABELE_FLOAT32, conv.in_channels, conv.out_channels, false}, threads, packed);
}

// Calls run(form, image) with the tiles and the type of a convolution's images.
template <class Run>
void in_form(const Conv& conv, int points, Run run) {
#if !defined(ABELE_HALF_REGISTERS)
  if (conv.type == ABELE_BFLOAT16) return run(Large(), uint16_t());
#endif
  points == Large::POINTS ? run(Large(), float()) : run(Small(), float());
}

// `packed` is null for weights that are not packed yet.
void forward(const Conv& conv, const void* x, const void* weight, const float* packed,
             const float* bias, void* y, bool adds, int points, int threads, Scratch& scratch) {
  float* start = scratch.zeros<float>(padded(conv.out_channels));
  if (bias != nullptr) std::copy(bias, bias + conv.out_channels, start);
  in_form(conv, points, [&](auto form, auto image) {
    using Form = decltype(form);
    using T = decltype(image);
    convolve<Form>(inputs_of(conv, false, Form::EDGE), outputs_of(conv, false, Form::EDGE),
                   static_cast<const T*>(x),
                   {weight, conv.type, conv.in_channels, conv.out_channels, false}, packed,
                   {start, static_cast<float>(conv.slope), adds}, static_cast<T*>(y), threads,
                   scratch);
  });
}

void gradient_of_images(const Conv& conv, const void* grad, const void* weight, void* grad_x,
                        int threads, Scratch& scratch) {
  const float* start = scratch.zeros<float>(padded(conv.in_channels));
  in_form(conv, Small::POINTS, [&](auto form, auto image) {
    using Form = decltype(form);
    using T = decltype(image);
    convolve<Form>(inputs_of(conv, true, Form::EDGE), outputs_of(conv, true, Form::EDGE),
                   static_cast<const T*>(grad),
                   {weight, conv.type, conv.out_channels, conv.in_channels, true}, nullptr,
                   {start, 1.0f, false}, static_cast<T*>(grad_x), threads, scratch);
  });
}

void gradient_of_weight(const Conv& conv, const void* grad, const void* x, void* to, int threads,
                        Scratch& scratch) {
  in_form(conv, Small::POINTS, [&](auto form, auto image) {
    using T = decltype(image);
    T* result = static_cast<T*>(to);
    if (conv.images == 0) return std::fill(result, result + conv.weights(), T());
    const Cuts<decltype(form)> cuts(conv);
    const Index parts = cuts.parts, tasks = cuts.blocks * cuts.panels;
    // Of each part and task, or of each thread: [POINTS][rows][PANEL].
    const Index of_sums = cuts.at_once() ? threads * cuts.task_size() : parts * cuts.size();
    float* sums = scratch.take<float>(of_sums);
    float* rooms = scratch.take<float>(cuts.rooms(threads) * cuts.room());
    const float* zeros = scratch.zeros<float>(std::max(padded(cuts.in), padded(cuts.out)));
    const WeightGradient<decltype(form), T> of = {cuts, static_cast<const T*>(grad),
                                                  static_cast<const T*>(x), result, zeros};
    with_teams(parts, threads, [&](const Team& team, Index thread) {
      for (Index i = team.blocks.begin; i < team.end(); ++i) {
        const auto [first, count] = part(cuts.grads.count(), parts, i);
        float* room = rooms + (team.size == 1 ? thread % cuts.rooms(threads) : 0) * cuts.room();
        of.sum(team, first, first + count, thread, room, sums + i * cuts.size());
      }
    });
    for_each(parts > 1 ? tasks : 0, threads, [&](Index task) {
      of.finish(task, sums + task * cuts.task_size());
    });
  });
}

}  // namespace

const Functions FUNCTIONS = {forward, gradient_of_images, gradient_of_weight, pack_weights};

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
  if (conv.type == ABELE_FLOAT32 && !fill(conv, 16) && fill(conv, 8))
    return winograd::half_registers::FUNCTIONS;
#endif
  return winograd::whole_registers::FUNCTIONS;
}

}  // namespace

int abele_winograd_forward(const AbeleConv* description, const void* x, const void* weight,
                           const float* bias, void* y, int threads) {
  const Conv conv(*description);
  if (!has_code(conv)) return ABELE_NO_CODE;
  return guarded([&](Scratch& scratch) {
    functions(conv).forward(conv, x, weight, nullptr, bias, y, false, 16, threads, scratch);
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
                                  const float* bias, void* y, int adds, int points, int threads) {
  const Conv conv(*description);
  if (!has_code(conv) || (conv.type != ABELE_FLOAT32 && points != 36)) return ABELE_NO_CODE;
  return guarded([&](Scratch& scratch) {
    functions(conv).forward(conv, x, nullptr, packed, bias, y, adds != 0, points, threads, scratch);
  });
}

int abele_winograd_backward(const AbeleConv* description, const void* grad, const void* x,
                            const void* weight, void* grad_x, void* grad_weight,
                            float* grad_bias, int threads) {
  const Conv conv(*description);
  if (!has_code(conv) || (conv.type != ABELE_FLOAT32 && grad_bias != nullptr)) return ABELE_NO_CODE;
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
                                     conv.out_channels, static_cast<const float*>(grad), grad_bias,
                                     threads, scratch);
  });
}
#endif
