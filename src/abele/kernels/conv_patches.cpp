// Convolutions whose windows lie side by side, and transposed ones: kernel and stride are equal.
//
// Each pixel of the small images belongs to a window of the large ones. With channels last, a row of
// that window is one run of memory, and windows that are neighbours follow each other. All passes are
// then products of matrices that read and write the images where they lie.
#include <algorithm>
#include <vector>

#include "channel_sums.h"
#include "matrix_tile.h"

namespace abele::patches {
namespace {

// Products that are summed while what they meet stays in the nearest cache, and columns that do.
constexpr Index DEPTH = 128, PANEL = TILE_COLS * LANES;
constexpr Index FULL = 16;  // floats of the widest register
// The sum over all pixels that gives the gradient of the weights has parts, whatever the threads.
constexpr Index PARTS_FLOATS = 1 << 22, MOST_PARTS = 16;

struct Patches : AbelePatches {
  std::vector<Index> places;  // where the weights of a run lie among those of a small channel
  explicit Patches(const AbelePatches& patches) : AbelePatches(patches), places(run()) {
    for (Index x = 0; x < kernel_width; ++x)
      for (Index c = 0; c < large_channels; ++c)
        places[x * large_channels + c] = c * kernel_height * kernel_width + x;
  }
  // Of the small images.
  Index rows() const { return images * height; }
  // Of one row of a window: its pixels and their channels.
  Index run() const { return kernel_width * large_channels; }
  Index weights() const { return small_channels * kernel_height * run(); }
  const float* small(const float* data, Index row) const {
    return data + row * width * small_channels;
  }
  Index large_at(Index row, Index i) const { return (row * kernel_height + i) * width * run(); }
  // Of place `q` of row `i` of a window, in [small][large][kernel_height][kernel_width].
  Index weight_at(Index channel, Index i, Index q) const {
    return channel * kernel_height * run() + i * kernel_width + places[q];
  }
};

// Whether runs and small channels fill registers.
bool fills(const AbelePatches& p) {
  return p.kernel_width * p.large_channels % FULL == 0 && p.small_channels % FULL == 0;
}

// Matrices for each row of the window, [kernel_height][panel][depth][columns of the panel].
template <class At>
const float* pack(Index height, Index depth, Index columns, const float* weight, Scratch& scratch,
                  At at) {
  float* packed = scratch.take<float>(height * depth * columns);
  float* to = packed;
  for (Index i = 0; i < height; ++i)
    for (Index first = 0; first < columns; first += PANEL)
      for (Index k = 0; k < depth; ++k)
        for (Index c = first; c < std::min(first + PANEL, columns); ++c)
          *to++ = weight[at(i, k, c)];
  return packed;
}

// c = a b, or c += a b, for rows of c with `columns` floats; b is packed.
void multiply(const float* a, Index rows, Index depth, const float* b, Index columns, float* c,
              bool add) {
  for (Index first = 0; first < columns; first += PANEL) {
    const Index wide = std::min(PANEL, columns - first);
    for (Index k = 0; k < depth; k += DEPTH) {
      const MatrixTile tile = {std::min(DEPTH, depth - k), a + k, depth, 1,
                               b + first * depth + k * wide, wide, c + first, columns,
                               0, add || k > 0};
      multiply_rows(tile, rows, wide / LANES);
    }
  }
}

// Rows of pixels, each beginning with the bias.
void fill(const float* bias, Index channels, Index pixels, float* to) {
  for (Index p = 0; p < pixels; ++p) std::copy_n(bias, channels, to + p * channels);
}

void spread(const Patches& p, const float* small, const float* weight, const float* bias,
            float* large, int threads, Scratch& scratch) {
  const Index depth = p.small_channels, run = p.run();
  const float* packed =
      pack(p.kernel_height, depth, run, weight, scratch,
           [&](Index i, Index k, Index q) { return p.weight_at(k, i, q); });
  for_each(p.rows(), threads, [&](Index row) {
    for (Index i = 0; i < p.kernel_height; ++i) {
      float* to = large + p.large_at(row, i);
      if (bias != nullptr) fill(bias, p.large_channels, p.width * p.kernel_width, to);
      multiply(p.small(small, row), p.width, depth, packed + i * depth * run, run, to,
               bias != nullptr);
    }
  });
}

void gather(const Patches& p, const float* large, const float* weight, const float* bias,
            float* small, int threads, Scratch& scratch) {
  const Index columns = p.small_channels, run = p.run();
  const float* packed =
      pack(p.kernel_height, run, columns, weight, scratch,
           [&](Index i, Index q, Index c) { return p.weight_at(c, i, q); });
  for_each(p.rows(), threads, [&](Index row) {
    float* to = small + row * p.width * columns;
    if (bias != nullptr) fill(bias, columns, p.width, to);
    for (Index i = 0; i < p.kernel_height; ++i)
      multiply(large + p.large_at(row, i), p.width, run, packed + i * run * columns, columns, to,
               bias != nullptr || i > 0);
  });
}

// Sums over the pixels of rows [first, end): [kernel_height][small][run].
void sum_rows(const Patches& p, const float* small, const float* large, Index first, Index end,
              float* sums) {
  const Index run = p.run(), channels = p.small_channels;
  for (Index row = first; row < end; ++row)
    for (Index i = 0; i < p.kernel_height; ++i)
      for (Index column = 0; column < run; column += PANEL) {
        const MatrixTile tile = {p.width, p.small(small, row), 1, channels,
                                 large + p.large_at(row, i) + column, run,
                                 sums + i * channels * run + column, run, 0, row > first};
        multiply_rows(tile, channels, std::min(PANEL, run - column) / LANES);
      }
}

void weight_gradient(const Patches& p, const float* small, const float* large, float* result,
                     int threads, Scratch& scratch) {
  const Index size = p.weights(), run = p.run();
  const Index most = std::clamp<Index>(PARTS_FLOATS / size, 1, MOST_PARTS);
  const Index parts = std::min(most, p.rows());
  if (p.rows() == 0 || p.width == 0) return std::fill(result, result + size, 0.0f);
  float* sums = scratch.take<float>(parts * size);
  for_each(parts, threads, [&](Index i) {
    const auto [first, count] = part(p.rows(), parts, i);
    sum_rows(p, small, large, first, first + count, sums + i * size);
  });
  for_each(p.kernel_height * p.small_channels, threads, [&](Index row) {
    float* sum = sums + row * run;
    for (Index i = 1; i < parts; ++i)
      for (Index q = 0; q < run; ++q) sum[q] += sum[i * size + q];
    const Index i = row / p.small_channels, channel = row % p.small_channels;
    for (Index q = 0; q < run; ++q) result[p.weight_at(channel, i, q)] = sum[q];
  });
}

template <class Pass>
int run(const AbelePatches& description, Pass pass) {
  if (!fills(description)) return ABELE_NO_CODE;
  return guarded([&](Scratch& scratch) { pass(Patches(description), scratch); });
}

}  // namespace
}  // namespace abele::patches

using namespace abele;

int abele_patches_spread(const AbelePatches* description, const float* small, const float* weight,
                         const float* bias, float* large, int threads) {
  return patches::run(*description, [&](const patches::Patches& p, Scratch& scratch) {
    patches::spread(p, small, weight, bias, large, threads, scratch);
  });
}

int abele_patches_gather(const AbelePatches* description, const float* large, const float* weight,
                         const float* bias, float* small, int threads) {
  return patches::run(*description, [&](const patches::Patches& p, Scratch& scratch) {
    patches::gather(p, large, weight, bias, small, threads, scratch);
  });
}

int abele_patches_weight(const AbelePatches* description, const float* small, const float* large,
                         float* grad_weight, int threads) {
  return patches::run(*description, [&](const patches::Patches& p, Scratch& scratch) {
    patches::weight_gradient(p, small, large, grad_weight, threads, scratch);
  });
}

int abele_channel_sums(int64_t rows, int64_t width, int64_t channels, const float* x, float* sums,
                       int threads) {
  return guarded([&](Scratch& scratch) {
    channels_last::channel_sums<8>(rows, width, channels, x, sums, threads, scratch);
  });
}
