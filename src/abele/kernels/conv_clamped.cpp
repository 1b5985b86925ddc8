// Convolutions of inference, whose results are bounded in registers: depthwise ones of channels-last
// images, and those of few channels that read planes and write channels-last images.
#include <algorithm>

#include "conv.h"
#include "tiles.h"

namespace abele::clamped {
namespace {

struct Clamped : AbeleClamped {
  Index out_height, out_width;
  float least, most;
  explicit Clamped(const AbeleClamped& d)
      : AbeleClamped(d),
        out_height((in_height + 2 * padding - size) / step + 1),
        out_width((in_width + 2 * padding - size) / step + 1),
        least(static_cast<float>(low)),
        most(static_cast<float>(high)) {}
  Index out_rows() const { return images * out_height; }
  Vec bounded(Vec value) const { return abele::bounded(value, broadcast(least), broadcast(most)); }
};

// Of a window, or of a row's windows, what is inside of `edge` pixels.
Part inside(Index first, Index size, Index edge) {
  const Index begin = std::min(size, std::max<Index>(0, -first));
  return {begin, std::max<Index>(0, std::min(size, edge - first) - begin)};
}

// -- depthwise ------------------------------------------------------------------------------------

// Neighbours of a row of results; x is where the first one's window begins, which may be outside.
// With `whole` windows, bounds of loops are known.
template <int size, int step, int count, bool whole>
void pixels(const Clamped& d, const float* x, const float* weight, const float* bias, float* y,
            Part high, Part wide) {
  if (whole) high = wide = {0, size};
  const Index channels = d.in_channels, row = d.in_width * channels;
  for (Index next = 0; next < channels; next += LANES) {
    const Index c = std::min<Index>(next, channels - LANES);
    Vec sums[count];
#pragma GCC unroll 4
    for (int j = 0; j < count; ++j) sums[j] = load(bias + c);
#pragma GCC unroll 7
    for (Index i = high.begin; i < high.begin + high.size; ++i)
#pragma GCC unroll 7
      for (Index k = wide.begin; k < wide.begin + wide.size; ++k) {
        const Vec factor = load(weight + (i * size + k) * channels + c);
        const float* from = x + i * row + k * channels + c;
#pragma GCC unroll 4
        for (int j = 0; j < count; ++j) sums[j] += load(from + j * step * channels) * factor;
      }
#pragma GCC unroll 4
    for (int j = 0; j < count; ++j) store(y + j * channels + c, d.bounded(sums[j]));
  }
}

template <int size, int step>
void row(const Clamped& d, const float* image, const float* weight, const float* bias, float* y,
         Index out) {
  constexpr int TOGETHER = 4;
  const Index channels = d.in_channels, top = out * step - d.padding;
  const Part high = inside(top, size, d.in_height);
  for (Index column = 0; column < d.out_width;) {
    const Index left = column * step - d.padding;
    const Part wide = inside(left, size, d.in_width);
    const float* x = image + (top * d.in_width + left) * channels;
    float* to = y + column * channels;
    const bool inner = left >= 0 && left + (TOGETHER - 1) * step + size <= d.in_width;
    if (inner && high.size == size)
      pixels<size, step, TOGETHER, true>(d, x, weight, bias, to, high, wide);
    else if (inner)
      pixels<size, step, TOGETHER, false>(d, x, weight, bias, to, high, wide);
    else
      pixels<size, step, 1, false>(d, x, weight, bias, to, high, wide);
    column += inner ? TOGETHER : 1;
  }
}

template <int size, int step>
void depthwise(const Clamped& d, const float* x, const float* weight, const float* bias, float* y,
               int threads) {
  const Index of_image = d.in_height * d.in_width * d.in_channels;
  for_each(d.out_rows(), threads, [&](Index i) {
    row<size, step>(d, x + i / d.out_height * of_image, weight, bias,
                    y + i * d.out_width * d.in_channels, i % d.out_height);
  });
}

// -- few channels ---------------------------------------------------------------------------------

// Pixels of a row and a panel of output channels. `offsets` are those of a window's elements.
template <int step, int count>
void tile(const Clamped& d, Index inner, const float* x, const Index* offsets, const float* b,
          const float* bias, float* y, Index width) {
  constexpr int VECTORS = PRODUCT_COLUMNS / LANES;
  Vec sums[count][VECTORS] = {};
  for (Index p = 0; p < inner; ++p, b += PRODUCT_COLUMNS) {
    const float* from = x + offsets[p];
    Vec columns[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) columns[v] = load(b + v * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) {
      Vec value = broadcast(from[i * step]);
      keep(value);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) sums[i][v] += value * columns[v];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < count; ++i) {
    float values[PRODUCT_COLUMNS];
    float* to = width == PRODUCT_COLUMNS ? y + i * d.out_channels : values;
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v)
      store(to + v * LANES, d.bounded(sums[i][v] + load(bias + v * LANES)));
    if (to == values) std::copy_n(values, width, y + i * d.out_channels);
  }
}

using TileOf = void (*)(const Clamped&, Index, const float*, const Index*, const float*,
                        const float*, float*, Index);
template <int step>
constexpr auto TILES_AT = table_of<PRODUCT_ROWS>([](auto i) -> TileOf { return tile<step, i + 1>; });
constexpr std::array<TileOf, PRODUCT_ROWS> TILES_OF[] = {TILES_AT<1>, TILES_AT<2>};

// Images with zeros around each plane, so that all windows are inside.
const float* padded(const Clamped& d, const float* x, int threads, Scratch& memory) {
  if (d.padding == 0) return x;
  const Index high = d.in_height + 2 * d.padding, wide = d.in_width + 2 * d.padding;
  float* to = memory.take<float>(d.images * d.in_channels * high * wide);
  for_each(d.images * d.in_channels * high, threads, [&](Index i) {
    const Index y = i % high - d.padding;
    float* row = to + i * wide;
    if (y < 0 || y >= d.in_height) return static_cast<void>(std::fill_n(row, wide, 0.0f));
    std::fill_n(row, d.padding, 0.0f);
    std::copy_n(x + (i / high * d.in_height + y) * d.in_width, d.in_width, row + d.padding);
    std::fill_n(row + d.padding + d.in_width, d.padding, 0.0f);
  });
  return to;
}

void few_channels(const Clamped& d, const float* x, const float* packed, const float* bias,
                  float* y, int threads, Scratch& memory) {
  const Index high = d.in_height + 2 * d.padding, wide = d.in_width + 2 * d.padding;
  const Index inner = d.in_channels * d.size * d.size;
  Index* offsets = memory.take<Index>(inner);
  for (Index p = 0; p < inner; ++p)
    offsets[p] = (p / d.size / d.size * high + p / d.size % d.size) * wide + p % d.size;
  const Index panels = ceil_div(d.out_channels, PRODUCT_COLUMNS);
  float* biases = memory.zeros<float>(panels * PRODUCT_COLUMNS);
  std::copy_n(bias, d.out_channels, biases);
  const float* images = padded(d, x, threads, memory);
  for_each(d.out_rows(), threads, [&](Index i) {
    const Index image = i / d.out_height * d.in_channels * high, top = i % d.out_height * d.step;
    const Index parts = ceil_div(d.out_width, PRODUCT_ROWS);
    for (Index j = 0; j < parts; ++j) {
      const Part columns = part(d.out_width, parts, j);
      const float* from = images + (image + top) * wide + columns.begin * d.step;
      float* to = y + (i * d.out_width + columns.begin) * d.out_channels;
      for (Index first = 0; first < d.out_channels; first += PRODUCT_COLUMNS)
        TILES_OF[d.step - 1][columns.size - 1](
            d, inner, from, offsets, packed + first * inner, biases + first, to + first,
            std::min(PRODUCT_COLUMNS, d.out_channels - first));
    }
  });
}

template <int size>
int depthwise_of(const Clamped& d, const float* x, const float* weight, const float* bias,
                 float* y, int threads) {
  if (d.step == 1) return depthwise<size, 1>(d, x, weight, bias, y, threads), ABELE_OK;
  return depthwise<size, 2>(d, x, weight, bias, y, threads), ABELE_OK;
}

}  // namespace
}  // namespace abele::clamped

using namespace abele;

int abele_clamped_depthwise(const AbeleClamped* description, const float* x, const float* weight,
                            const float* bias, float* y, int threads) {
  const clamped::Clamped d(*description);
  if (d.in_channels < LANES || d.step < 1 || d.step > 2 || d.padding >= d.size) return ABELE_NO_CODE;
  if (d.size == 3) return clamped::depthwise_of<3>(d, x, weight, bias, y, threads);
  if (d.size == 5) return clamped::depthwise_of<5>(d, x, weight, bias, y, threads);
  if (d.size == 7) return clamped::depthwise_of<7>(d, x, weight, bias, y, threads);
  return ABELE_NO_CODE;
}

int abele_clamped_few_channels(const AbeleClamped* description, const float* x,
                               const float* packed, const float* bias, float* y, int threads) {
  const clamped::Clamped d(*description);
  const bool is_short = d.in_channels * d.size * d.size <= LONGEST_SUM;
  if (!is_short || d.step < 1 || d.step > 2) return ABELE_NO_CODE;
  return guarded([&](Scratch& memory) {
    clamped::few_channels(d, x, packed, bias, y, threads, memory);
  });
}
