// Convolutions of 3 x 3 with steps of one and a border of one, and of 1 x 1, for images of few channels
// [samples, channels, height, width]: results and gradients of images, and gradients of weights.
//
// A block computes some pixels of eight channels, or sums some pixels for eight by eight weights.
#pragma once
#include "device.h"

namespace abele {

// Numbers that threads of a block share; all functions here use the same ones.
constexpr unsigned numbers_of_block = 9216;
ABELE_INLINE float* room() {
  alignas(16) __shared__ float numbers[numbers_of_block];
  return numbers;
}
struct alignas(16) Four {
  float at[4];
};
struct alignas(8) Two {
  float at[2];
};

// How weights of a convolution are read: [results, channels, taps], or for gradients of images with
// results and channels exchanged and nine taps turned by half a circle.
struct Taps {
  const float* weight;
  unsigned results, channels, to_result, to_channel;
  bool turned;
  __device__ float at(unsigned result, unsigned channel, unsigned tap) const {
    if (result >= results || channel >= channels) return 0;
    return weight[result * to_result + channel * to_channel + (turned ? 8 - tap : tap)];
  }
};

constexpr unsigned channels_of_block = 8, rows_of_block = 16;

// Columns and lines of pixels of a block, with a border, and how its threads read them: neighbours of
// a line are read by neighbouring threads, and the two columns of the border afterwards.
template <unsigned rows, unsigned wide, unsigned step>
struct Lines {
  static constexpr unsigned at_a_time = threads / wide, turns = (rows + at_a_time - 1) / at_a_time;
  static constexpr unsigned border_turns = (rows * 2 + threads - 1) / threads;
  float inner[turns], border[border_turns];

  // value(row, column) for columns of -1 to wide.
  template <class Value>
  __device__ void read(Value value) {
#pragma unroll
    for (unsigned turn = 0; turn < turns; ++turn) {
      const unsigned row = turn * at_a_time + threadIdx.x / wide;
      inner[turn] = row < rows ? value(row, int(threadIdx.x % wide)) : 0;
    }
#pragma unroll
    for (unsigned turn = 0; turn < border_turns; ++turn) {
      const unsigned i = turn * threads + threadIdx.x;
      border[turn] = i < rows * 2 ? value(i / 2, i % 2 ? int(wide) : -1) : 0;
    }
  }
  __device__ void write(float* to) const {
#pragma unroll
    for (unsigned turn = 0; turn < turns; ++turn) {
      const unsigned row = turn * at_a_time + threadIdx.x / wide;
      if (row < rows) to[row * step + threadIdx.x % wide + 1] = inner[turn];
    }
#pragma unroll
    for (unsigned turn = 0; turn < border_turns; ++turn) {
      const unsigned i = turn * threads + threadIdx.x;
      if (i < rows * 2) to[i / 2 * step + (i % 2 ? wide + 1 : 0)] = border[turn];
    }
  }
};

// Each thread computes `pixels` that lie side by side, 1 or 2.
template <unsigned pixels>
ABELE_ONCE void convolution(unsigned block, unsigned height, unsigned width, Taps taps,
                            const float* x, const float* bias, float* y) {
  constexpr unsigned at_once = 4, wide = 16 * pixels, high = rows_of_block;
  constexpr unsigned lines = high + 2, step = wide + 4, weights_at_once = at_once * 9 * channels_of_block;
  constexpr unsigned weight_turns = (weights_at_once + threads - 1) / threads;
  float* const image = room();                           // [at_once][lines][step]
  float* const weights = image + at_once * lines * step;  // [at_once][9][channels_of_block]
  const unsigned groups = (taps.results + channels_of_block - 1) / channels_of_block;
  const unsigned across = (width + wide - 1) / wide, down = (height + high - 1) / high;
  const unsigned first = block % groups * channels_of_block;
  block /= groups;
  const int left = int(block % across * wide), top = int(block / across % down * high);
  const unsigned sample = block / across / down, plane = height * width;
  const unsigned column = threadIdx.x % 16 * pixels, line = threadIdx.x / 16;
  x += int64_t(sample) * taps.channels * plane;
  Lines<at_once * lines, wide, step> next;
  float next_weights[weight_turns];
  const auto read = [&](unsigned from) {
    next.read([&](unsigned row, int at) {
      const unsigned c = from + row / lines;
      const int above = top + int(row % lines) - 1, before = left + at;
      const bool inside = unsigned(above) < height && unsigned(before) < width;
      return inside && c < taps.channels ? x[int(c * plane) + above * int(width) + before] : 0;
    });
#pragma unroll
    for (unsigned turn = 0; turn < weight_turns; ++turn) {
      const unsigned i = turn * threads + threadIdx.x, k = i % channels_of_block;
      const unsigned c = i / (channels_of_block * 9), tap = i / channels_of_block % 9;
      next_weights[turn] = i < weights_at_once ? taps.at(first + k, from + c, tap) : 0;
    }
  };
  float sums[channels_of_block][pixels] = {};
  read(0);
  for (unsigned from = 0; from < taps.channels; from += at_once) {
    __syncthreads();
    next.write(image);
#pragma unroll
    for (unsigned turn = 0; turn < weight_turns; ++turn)
      if (turn * threads + threadIdx.x < weights_at_once)
        weights[turn * threads + threadIdx.x] = next_weights[turn];
    __syncthreads();
    if (from + at_once < taps.channels) read(from + at_once);  // arrives while this is computed
#pragma unroll
    for (unsigned c = 0; c < at_once; ++c)
#pragma unroll
      for (unsigned r = 0; r < 3; ++r) {
        const float* const row = image + (c * lines + line + r) * step + column;
        float values[pixels + 2];
        if (pixels == 2) {
          const Two a = *(const Two*)row, b = *(const Two*)(row + 2);
          values[0] = a.at[0], values[1] = a.at[1], values[2] = b.at[0], values[pixels + 1] = b.at[1];
        } else {
          values[0] = row[0], values[1] = row[1], values[2] = row[2];
        }
#pragma unroll
        for (unsigned s = 0; s < 3; ++s) {
          const Four* const of_tap = (const Four*)(weights + (c * 9 + r * 3 + s) * channels_of_block);
          const Four lower = of_tap[0], upper = of_tap[1];
#pragma unroll
          for (unsigned k = 0; k < channels_of_block; ++k)
#pragma unroll
            for (unsigned i = 0; i < pixels; ++i)
              sums[k][i] += values[i + s] * (k < 4 ? lower.at[k % 4] : upper.at[k % 4]);
        }
      }
  }
  const unsigned at_line = top + line, at_column = left + column;
  if (at_line >= height) return;
  y += (int64_t(sample) * taps.results + first) * plane + at_line * width + at_column;
#pragma unroll
  for (unsigned k = 0; k < channels_of_block; ++k) {
    if (first + k >= taps.results) return;
    const float added = bias ? bias[first + k] : 0;
#pragma unroll
    for (unsigned i = 0; i < pixels; ++i)
      if (at_column + i < width) y[k * plane + i] = sums[k][i] + added;
  }
}

// Sums of gradients times images for weights [results, channels, 3, 3], over one of `parts` of all
// pixels; a block does so for eight results and eight channels.
ABELE_ONCE void convolution_weights(unsigned block, unsigned samples, unsigned channels,
                                    unsigned results, unsigned height, unsigned width,
                                    unsigned parts, const float* grad, const float* x,
                                    float* sums_of_parts) {
  constexpr unsigned wide = 32, high = rows_of_block, lines = high + 2, columns = wide + 2;
  // Steps between rows and channels for which threads of a warp read from different banks.
  constexpr unsigned of_image = lines * columns, of_row = wide + 1, of_grad = high * of_row + 2;
  constexpr unsigned rows_at_once = channels_of_block * lines / 3;
  constexpr unsigned of_thread = 4, sums_of_thread = of_thread * 9, pairs = 16, rows = 16;
  static_assert(channels_of_block * (of_image + of_grad) <= numbers_of_block, "room");
  static_assert(rows * pairs * sums_of_thread <= numbers_of_block, "room");
  float* const image = room();                                // [channels_of_block][lines][columns]
  float* const grads = image + channels_of_block * of_image;  // [channels_of_block][high][of_row]
  const unsigned part = block % parts, groups = (results + channels_of_block - 1) / channels_of_block;
  const unsigned first_result = block / parts % groups * channels_of_block;
  const unsigned first_channel = block / parts / groups * channels_of_block;
  const unsigned across = (width + wide - 1) / wide, down = (height + high - 1) / high;
  const unsigned c = threadIdx.x % 8, half = threadIdx.x / 8 % 2, line = threadIdx.x / pairs;
  const unsigned plane = height * width;
  float sums[of_thread][9] = {};
  for (unsigned tile = part; tile < across * down * samples; tile += parts) {
    const int left = int(tile % across * wide), top = int(tile / across % down * high);
    const unsigned sample = tile / across / down;
    __syncthreads();
    const float* const images = x + int64_t(sample) * channels * plane;
    const float* const of_sample = grad + int64_t(sample) * results * plane;
#pragma unroll 1
    for (unsigned turn = 0; turn < channels_of_block * lines; turn += rows_at_once) {
      Lines<rows_at_once, wide, columns> some;
      some.read([&](unsigned row, int at) {
        const unsigned channel = first_channel + (turn + row) / lines;
        const int above = top + int((turn + row) % lines) - 1, before = left + at;
        const bool inside = unsigned(above) < height && unsigned(before) < width;
        const int place = int(channel * plane) + above * int(width) + before;
        return inside && channel < channels ? images[place] : 0;
      });
      some.write(image + turn * columns);
    }
#pragma unroll 8
    for (unsigned row = threadIdx.x / wide; row < channels_of_block * high; row += threads / wide) {
      const unsigned k = row / high, result = first_result + k;
      const unsigned at_line = top + row % high, at_column = left + threadIdx.x % wide;
      const bool there = at_line < height && at_column < width && result < results;
      grads[k * of_grad + row % high * of_row + threadIdx.x % wide] =
          there ? of_sample[result * plane + at_line * width + at_column] : 0;
    }
    __syncthreads();
    const float* const from = image + c * of_image + line * columns;
    const float* const of_line = grads + half * of_thread * of_grad + line * of_row;
    float window[3][3];
#pragma unroll
    for (unsigned r = 0; r < 3; ++r) window[r][1] = from[r * columns], window[r][2] = from[r * columns + 1];
#pragma unroll 8
    for (unsigned s = 0; s < wide; ++s) {
#pragma unroll
      for (unsigned r = 0; r < 3; ++r) {
        window[r][0] = window[r][1], window[r][1] = window[r][2];
        window[r][2] = from[r * columns + s + 2];
      }
#pragma unroll
      for (unsigned k = 0; k < of_thread; ++k) {
        const float g = of_line[k * of_grad + s];
#pragma unroll
        for (unsigned tap = 0; tap < 9; ++tap) sums[k][tap] += g * window[tap / 3][tap % 3];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < sums_of_thread; ++i)
    image[(line * sums_of_thread + i) * pairs + threadIdx.x % pairs] = sums[i / 9][i % 9];
  __syncthreads();
  for (unsigned i = threadIdx.x; i < sums_of_thread * pairs; i += threads) {
    float sum = 0;
#pragma unroll
    for (unsigned row = 0; row < rows; ++row) sum += image[row * sums_of_thread * pairs + i];
    const unsigned pair = i % pairs, of_pair = i / pairs;
    const unsigned result = first_result + pair / 8 * of_thread + of_pair / 9;
    const unsigned channel = first_channel + pair % 8;
    if (result < results && channel < channels)
      sums_of_parts[(int64_t(part) * results + result) * channels * 9 + channel * 9 + of_pair % 9] = sum;
  }
}

// The same of 1 x 1. A thread computes a pixel.
ABELE_ONCE void pointwise(unsigned block, unsigned pixels, Taps taps, const float* x,
                          const float* bias, float* y) {
  float* const weights = room();  // [channels][channels_of_block]
  const unsigned groups = (taps.results + channels_of_block - 1) / channels_of_block;
  const unsigned first = block % groups * channels_of_block, across = (pixels + threads - 1) / threads;
  const unsigned sample = block / groups / across;
  const unsigned pixel = block / groups % across * threads + threadIdx.x;
  for (unsigned i = threadIdx.x; i < taps.channels * channels_of_block; i += threads)
    weights[i] = taps.at(first + i % channels_of_block, i / channels_of_block, 0);
  __syncthreads();
  if (pixel >= pixels) return;
  x += int64_t(sample) * taps.channels * pixels + pixel;
  y += (int64_t(sample) * taps.results + first) * pixels + pixel;
  float sums[channels_of_block] = {};
#pragma unroll 8
  for (unsigned c = 0; c < taps.channels; ++c) {
    const float value = x[c * pixels];
    const Four* const of_channel = (const Four*)(weights + c * channels_of_block);
    const Four lower = of_channel[0], upper = of_channel[1];
#pragma unroll
    for (unsigned k = 0; k < channels_of_block; ++k)
      sums[k] += value * (k < 4 ? lower.at[k % 4] : upper.at[k % 4]);
  }
#pragma unroll
  for (unsigned k = 0; k < channels_of_block; ++k)
    if (first + k < taps.results) y[k * pixels] = sums[k] + (bias ? bias[first + k] : 0);
}

ABELE_ONCE void pointwise_weights(unsigned block, unsigned samples, unsigned channels,
                                  unsigned results, unsigned pixels, unsigned parts,
                                  const float* grad, const float* x, float* sums_of_parts) {
  constexpr unsigned some = channels_of_block, half = some * some / 2, lanes = threads / half;
  static_assert(half * threads <= numbers_of_block, "room");
  float* const all = room();
  const unsigned part = block % parts, groups = (results + some - 1) / some;
  const unsigned first_result = block / parts % groups * some;
  const unsigned first_channel = block / parts / groups * some;
  float sums[some][some] = {};
  for (unsigned i = part * threads + threadIdx.x; i < samples * pixels; i += parts * threads) {
    const unsigned sample = i / pixels, pixel = i % pixels;
    const float* const grads = grad + (int64_t(sample) * results + first_result) * pixels + pixel;
    const float* const values = x + (int64_t(sample) * channels + first_channel) * pixels + pixel;
    float g[some], v[some];
#pragma unroll
    for (unsigned k = 0; k < some; ++k) {
      g[k] = first_result + k < results ? grads[k * pixels] : 0;
      v[k] = first_channel + k < channels ? values[k * pixels] : 0;
    }
#pragma unroll
    for (unsigned k = 0; k < some; ++k)
#pragma unroll
      for (unsigned c = 0; c < some; ++c) sums[k][c] += g[k] * v[c];
  }
  // Half of the sums at a time: those of all threads, then of some, then the last ones.
  const unsigned which = threadIdx.x / lanes, lane = threadIdx.x % lanes;
#pragma unroll
  for (unsigned turn = 0; turn < 2; ++turn) {
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < half; ++i)
      all[i * threads + threadIdx.x] = sums[turn * some / 2 + i / some][i % some];
    __syncthreads();
    float sum = 0;
#pragma unroll 8
    for (unsigned i = lane; i < threads; i += lanes) sum += all[which * threads + i];
    __syncthreads();
    all[threadIdx.x] = sum;
    __syncthreads();
    if (lane == 0) {
      sum = 0;
      for (unsigned i = 0; i < lanes; ++i) sum += all[threadIdx.x + i];
      const unsigned result = first_result + turn * some / 2 + which / some;
      const unsigned channel = first_channel + which % some;
      if (result < results && channel < channels)
        sums_of_parts[(int64_t(part) * results + result) * channels + channel] = sum;
    }
  }
}

}  // namespace abele
