// Depthwise convolutions of images with their channels apart: each channel has a kernel of its own.
//
// A register holds pixels of one row, read where they lie. Several rows of results are computed together,
// so that a register that is read serves all of them.
#include <utility>

#include "conv.h"
#include "depthwise.h"

namespace abele::depthwise {
namespace {

// Rows of results that are computed together.
constexpr int ROWS = 4;

// A plane that is convolved: rows of the source, those of the results, and how they meet.
struct Plane {
  const float* from;
  float* to;
  Index height, width, out_height, out_width, pad_height, pad_width;
};

// Registers for each column of a kernel.
template <int size, int step, int... columns>
std::array<Pixels<step>, size> pixels(Index first, Index count,
                                      std::integer_sequence<int, columns...>) {
  return {Pixels<step>(first + columns, count)...};
}
template <int size, int step>
std::array<Pixels<step>, size> pixels_from(Index first, Index count) {
  return pixels<size, step>(first, count, std::make_integer_sequence<int, size>());
}

// Some rows of results, of one register of columns.
template <int size, int step, int rows>
void result_rows(const Plane& p, const std::array<Pixels<step>, size>& columns, const float* weight,
                 float first, Index row, Index column, const Within& kept) {
  constexpr int read = (rows - 1) * step + size;
  Vec sums[rows];
  for (int r = 0; r < rows; ++r) sums[r] = broadcast(first);
#pragma GCC unroll 16
  for (int i = 0; i < read; ++i) {
    const Index y = row * step + i - p.pad_height;
    if (y < 0 || y >= p.height) continue;
#pragma GCC unroll 8
    for (int j = 0; j < size; ++j) {
      const Vec value = columns[j].of(p.from + y * p.width);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
        if (i >= r * step && i < r * step + size)
          sums[r] += broadcast(weight[(i - r * step) * size + j]) * value;
    }
  }
  for (int r = 0; r < rows; ++r) kept.store(p.to + (row + r) * p.out_width + column, sums[r]);
}

// Turns of the loop in ``convolve``.
Index turns_of(const Plane& p) {
  return ceil_div(p.out_width, LANES) * ceil_div(p.out_height, ROWS);
}

template <int size, int step>
void convolve(const Plane& p, const float* weight, float first, Ahead ahead = {}) {
  for (Index column = 0; column < p.out_width; column += LANES) {
    const auto columns = pixels_from<size, step>(column * step - p.pad_width, p.width);
    const Within kept(0, p.out_width - column);
    Index row = 0;
    for (; row + ROWS <= p.out_height; row += ROWS) {
      ahead.turn();
      result_rows<size, step, ROWS>(p, columns, weight, first, row, column, kept);
    }
    for (; row < p.out_height; ++row)
      result_rows<size, step, 1>(p, columns, weight, first, row, column, kept);
  }
}

// The gradient of a plane that was read in steps of 2: of its even and of its odd columns, by the
// columns and rows of the kernel that meet them.
template <int size>
void spread(const Plane& p, const float* weight) {
  constexpr int reach = (size + 1) / 2;
  for (Index column = 0; 2 * column < p.out_width + p.pad_width; column += LANES) {
    const auto columns = pixels_from<reach, 1>(column - reach + 1, p.width);
    const Index place = 2 * column - p.pad_width;
    const Within low(-place, p.out_width), high(-place - LANES, p.out_width);
    for (Index row = 0; row < p.out_height; ++row) {
      Vec even = {}, odd = {};
      for (Index i = (row + p.pad_height) % 2; i < size; i += 2) {
        const Index y = (row + p.pad_height - i) / 2;
        if (row + p.pad_height < i || y >= p.height) continue;
#pragma GCC unroll 4
        for (int j = 0; j < reach; ++j) {
          const Vec value = columns[reach - 1 - j].of(p.from + y * p.width);
          even += broadcast(weight[i * size + 2 * j]) * value;
          if (2 * j + 1 < size) odd += broadcast(weight[i * size + 2 * j + 1]) * value;
        }
      }
      float* to = p.to + row * p.out_width + place;
      low.store(to, in_turns<0>(even, odd, EACH_LANE));
      high.store(to + LANES, in_turns<1>(even, odd, EACH_LANE));
    }
  }
}

// Adds the gradients of some rows of a kernel, of which the first is `top`.
template <int size, int step, int rows>
void add_products(const Depthwise& d, const float* grad, const float* x, Index top, Vec* sums,
                  Ahead& ahead) {
  Vec own[rows * size];
  std::copy_n(sums + top * size, rows * size, own);
  for (Index column = 0; column < d.out_width; column += LANES) {
    const auto columns = pixels_from<size, step>(column * step - d.pad_width, d.in_width);
    const Within read(0, d.out_width - column);
    for (Index row = 0; row < d.out_height; ++row) {
      ahead.turn();
      const Vec value = read.load(grad + row * d.out_width + column);
#pragma GCC unroll 4
      for (int i = 0; i < rows; ++i) {
        const Index y = row * step + top + i - d.pad_height;
        if (y < 0 || y >= d.in_height) continue;
#pragma GCC unroll 8
        for (int j = 0; j < size; ++j)
          own[i * size + j] += value * columns[j].of(x + y * d.in_width);
      }
    }
  }
  std::copy_n(own, rows * size, sums + top * size);
}

// Adds those of a plane.
template <int size, int step>
void add_gradients(const Depthwise& d, const float* grad, const float* x, double* sums,
                   Ahead ahead) {
  constexpr int rows = size == 3 ? 3 : 1;  // sums of more do not fit into registers
  Vec lanes[size * size] = {};
  for (Index top = 0; top < size; top += rows)
    add_products<size, step, rows>(d, grad, x, top, lanes, ahead);
  float totals[size * size];
  sum_lanes(lanes, size * size, totals);
  for (int i = 0; i < size * size; ++i) sums[i] += totals[i];
}

double sum_of(const float* values, Index count) {
  Vec lanes = {};
  for (Index i = 0; i < count; i += LANES) lanes += Within(0, count - i).load(values + i);
  float total;
  sum_lanes(&lanes, 1, &total);
  return total;
}

template <int size, int step>
void forward(const Depthwise& d, const float* x, const float* weight, const float* bias, float* y,
             int threads) {
  for_each(d.images * d.channels, threads, [&](Index plane) {
    const Index channel = plane % d.channels;
    const Plane p{x + plane * d.in_plane(), y + plane * d.out_plane(), d.in_height, d.in_width,
                  d.out_height, d.out_width, d.pad_height, d.pad_width};
    Ahead ahead;
    if (plane + 1 < d.images * d.channels) {
      ahead.add(p.from + d.in_plane(), d.in_plane(), turns_of(p));
      ahead.add(p.to + d.out_plane(), d.out_plane(), turns_of(p));
    }
    convolve<size, step>(p, weight + channel * size * size, bias ? bias[channel] : 0.0f, ahead);
  });
}

template <int size, int step>
void plane_gradient(const Depthwise& d, const float* grad, const float* weight, float* grad_x) {
  Plane p{grad, grad_x, d.out_height, d.out_width, d.in_height, d.in_width, d.pad_height, d.pad_width};
  if constexpr (step == 2) {
    spread<size>(p, weight);
  } else {
    float turned[size * size];
    for (int i = 0; i < size * size; ++i) turned[i] = weight[size * size - 1 - i];
    p.pad_height = size - 1 - d.pad_height, p.pad_width = size - 1 - d.pad_width;
    convolve<size, 1>(p, turned, 0.0f);
  }
}

template <int size, int step>
void backward(const Depthwise& d, const float* grad, const float* x, const float* weight,
              const Gradients& to, int threads) {
  for_each(d.channels, threads, [&](Index channel) {
    double sums[size * size] = {}, bias = 0.0;
    for (Index image = 0; image < d.images; ++image) {
      const Index plane = image * d.channels + channel;
      const float* of_plane = grad + plane * d.out_plane();
      if (to.weight) {
        const Index turns = ceil_div(d.out_width, LANES) * d.out_height;
        Ahead ahead;
        if (to.x) ahead.add(to.x + plane * d.in_plane(), d.in_plane(), turns);
        const Index next = image + 1 < d.images ? plane + d.channels : channel + 1;
        if (next < d.images * d.channels) {
          ahead.add(grad + next * d.out_plane(), d.out_plane(), turns);
          ahead.add(x + next * d.in_plane(), d.in_plane(), turns);
        }
        add_gradients<size, step>(d, of_plane, x + plane * d.in_plane(), sums, ahead);
      }
      if (to.x)
        plane_gradient<size, step>(d, of_plane, weight + channel * size * size,
                                   to.x + plane * d.in_plane());
      if (to.bias) bias += sum_of(of_plane, d.out_plane());
    }
    for (int i = 0; to.weight && i < size * size; ++i)
      to.weight[channel * size * size + i] = static_cast<float>(sums[i]);
    if (to.bias) to.bias[channel] = static_cast<float>(bias);
  });
}

// Calls run with the size and the step of a kernel, if there is code for them.
template <class Run>
int with_sizes(const AbeleDepthwise& d, Run run) {
  const auto with_step = [&](auto size) {
    if (d.step == 1) return run(size, std::integral_constant<int, 1>()), ABELE_OK;
    if (d.step == 2) return run(size, std::integral_constant<int, 2>()), ABELE_OK;
    return ABELE_NO_CODE;
  };
  if (d.pad_height >= d.size || d.pad_width >= d.size) return ABELE_NO_CODE;
  if (d.size == 3) return with_step(std::integral_constant<int, 3>());
  if (d.size == 5) return with_step(std::integral_constant<int, 5>());
  if (d.size == 7) return with_step(std::integral_constant<int, 7>());
  return ABELE_NO_CODE;
}

}  // namespace
}  // namespace abele::depthwise

using namespace abele;

int abele_depthwise_forward(const AbeleDepthwise* description, const float* x, const float* weight,
                            const float* bias, float* y, int threads) {
  return depthwise::with_sizes(*description, [&](auto size, auto step) {
    const depthwise::Depthwise d(*description);
    depthwise::forward<size, step>(d, x, weight, bias, y, threads);
  });
}

int abele_depthwise_backward(const AbeleDepthwise* description, const float* grad, const float* x,
                             const float* weight, float* grad_x, float* grad_weight,
                             float* grad_bias, int threads) {
  return depthwise::with_sizes(*description, [&](auto size, auto step) {
    const depthwise::Depthwise d(*description);
    const Gradients to{grad_x, grad_weight, grad_bias};
    depthwise::backward<size, step>(d, grad, x, weight, to, threads);
  });
}
