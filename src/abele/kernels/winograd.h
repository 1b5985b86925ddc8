// The transforms of Winograd's F(2x2, 3x3) (arXiv 1509.09308), a register of channels at a time.
//
// A tile is 4x4 inputs that give 2x2 outputs. With input, kernel and output as matrices d, g, y:
//     y = A^T [(G g G^T) * (B^T d B)] A
// has 16 products where the plain sum has 36. Gradients are the same sum read from the other side:
//     dg = G^T [(A dy A^T) * (B^T d B)] G
// Each transformed value is a matrix of its own: [16][tiles][channels].
#pragma once

#include "conv.h"
#include "lanes.h"

namespace abele::winograd {

// Convolutions whose channels fill registers of sixteen, and, where a processor has halves of them,
// those whose channels fill only these.
#define ABELE_WINOGRAD                                                                            \
  void forward(const Conv& conv, const float* x, const float* weight, const float* bias,          \
               float* y, int threads, Scratch& scratch);                                          \
  void gradient_of_images(const Conv& conv, const float* grad, const float* weight, float* grad_x, \
                          int threads, Scratch& scratch);                                         \
  void gradient_of_weight(const Conv& conv, const float* grad, const float* x, float* result,     \
                          int threads, Scratch& scratch);                                         \
  void pack_weights(const Conv& conv, const float* weight, float* packed, int threads);           \
  void forward_packed(const Conv& conv, const float* x, const float* packed, const float* bias,   \
                      float* y, bool adds, int threads, Scratch& scratch);
namespace whole_registers {
ABELE_WINOGRAD
}
namespace half_registers {
ABELE_WINOGRAD
}
#undef ABELE_WINOGRAD

namespace ABELE_LENGTH {

constexpr int POINTS = 16, TAPS = 9;
constexpr Index LONG_ROW = ABELE_WINOGRAD_LONG_ROW;

inline Index registers(Index channels) { return ceil_div(channels, LANES); }
inline Index padded(Index channels) { return registers(channels) * LANES; }
// A row of a transformed matrix: long rows that lie a power of two apart would share a cache set.
inline Index pitch(Index channels) {
  return padded(channels) + (channels < LONG_ROW ? 0 : LANES);
}
// Likewise one of the matrices of some tiles.
inline Index matrix_size(Index tiles, Index channels) { return tiles * pitch(channels) + LANES; }

// The tiles of a batch of images, [images][rows][columns], and where they lie in it.
struct Tiles {
  Index images, height, width, channels;  // of the images that are read or written
  Index rows, cols, shift;                // a tile begins at 2 * its place - shift
  Index count() const { return images * rows * cols; }

  // Calls body(pixels) for tiles [first, first + count): pointers to their SIZE x SIZE pixels. Those
  // outside of the image become `outside`.
  template <int SIZE, class Float, class Body>
  void walk(Index first, Index count, Float* data, Float* outside, Body body) const {
    Index image = first / (rows * cols), row = first / cols % rows, col = first % cols;
    Float* pixels[SIZE * SIZE];
    for (Index t = 0; t < count; ++t) {
      const Index y0 = 2 * row - shift, x0 = 2 * col - shift;
      Float* corner = data + ((image * height + y0) * width + x0) * channels;
      const bool inside = y0 >= 0 && y0 + SIZE <= height && x0 >= 0 && x0 + SIZE <= width;
      for (Index i = 0; i < SIZE; ++i)
        for (Index j = 0; j < SIZE; ++j) {
          const Index y = y0 + i, x = x0 + j;
          const bool there = inside || (y >= 0 && y < height && x >= 0 && x < width);
          pixels[i * SIZE + j] = there ? corner + (i * width + j) * channels : outside;
        }
      body(pixels);
      if (++col < cols) continue;
      col = 0;
      if (++row < rows) continue;
      row = 0, ++image;
    }
  }
};

// The first `count` lanes, the others zero.
inline Vec load_some(const float* from, Index count) {
  Vec value = {};
  std::memcpy(&value, from, count * sizeof(float));
  return value;
}
inline void store_some(float* to, Vec value, Index count) {
  std::memcpy(to, &value, count * sizeof(float));
}

// B^T d B: first columns of four, then rows.
inline void transform_column(const Vec* d, Vec* t) {
  t[0] = d[0] - d[8];
  t[4] = d[4] + d[8];
  t[8] = d[8] - d[4];
  t[12] = d[4] - d[12];
}
inline void transform_rows(const Vec* t, Vec* v) {
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = t[i] - t[i + 2];
    v[i + 1] = t[i + 1] + t[i + 2];
    v[i + 2] = t[i + 2] - t[i + 1];
    v[i + 3] = t[i + 1] - t[i + 3];
  }
}
inline void transform_input(const Vec* d, Vec* v) {
  Vec t[16];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) transform_column(d + j, t + j);
  transform_rows(t, v);
}

// A^T m A
inline void transform_output(const Vec* m, Vec* y) {
  Vec t[8];
  for (int j = 0; j < 4; ++j) {
    t[j] = m[j] + m[4 + j] + m[8 + j];
    t[4 + j] = m[4 + j] - m[8 + j] - m[12 + j];
  }
  for (int i = 0; i < 2; ++i) {
    const Vec* row = t + 4 * i;
    y[2 * i] = row[0] + row[1] + row[2];
    y[2 * i + 1] = row[1] - row[2] - row[3];
  }
}

// A dy A^T
inline void transform_gradient(const Vec* dy, Vec* v) {
  Vec t[8];
  for (int j = 0; j < 2; ++j) {
    t[j] = dy[j];
    t[2 + j] = dy[j] + dy[2 + j];
    t[4 + j] = dy[j] - dy[2 + j];
    t[6 + j] = -dy[2 + j];
  }
  for (int i = 0; i < 4; ++i) {
    const Vec a = t[2 * i], b = t[2 * i + 1];
    v[4 * i] = a;
    v[4 * i + 1] = a + b;
    v[4 * i + 2] = a - b;
    v[4 * i + 3] = -b;
  }
}

// G g G^T
inline void transform_kernel(const Vec* g, Vec* u) {
  const Vec half = broadcast(0.5f);
  Vec t[12];
  for (int j = 0; j < 3; ++j) {
    const Vec ends = (g[j] + g[6 + j]) * half, middle = g[3 + j] * half;
    t[j] = g[j];
    t[3 + j] = ends + middle;
    t[6 + j] = ends - middle;
    t[9 + j] = g[6 + j];
  }
  for (int i = 0; i < 4; ++i) {
    const Vec* row = t + 3 * i;
    const Vec ends = (row[0] + row[2]) * half, middle = row[1] * half;
    u[4 * i] = row[0];
    u[4 * i + 1] = ends + middle;
    u[4 * i + 2] = ends - middle;
    u[4 * i + 3] = row[2];
  }
}

// G^T m G
inline void transform_kernel_gradient(const Vec* m, Vec* g) {
  const Vec half = broadcast(0.5f);
  Vec t[12];
  for (int j = 0; j < 4; ++j) {
    const Vec sum = (m[4 + j] + m[8 + j]) * half, difference = (m[4 + j] - m[8 + j]) * half;
    t[j] = m[j] + sum;
    t[4 + j] = difference;
    t[8 + j] = sum + m[12 + j];
  }
  for (int i = 0; i < 3; ++i) {
    const Vec* row = t + 4 * i;
    const Vec sum = (row[1] + row[2]) * half, difference = (row[1] - row[2]) * half;
    g[3 * i] = row[0] + sum;
    g[3 * i + 1] = difference;
    g[3 * i + 2] = sum + row[3];
  }
}

}  // namespace ABELE_LENGTH
}  // namespace abele::winograd
