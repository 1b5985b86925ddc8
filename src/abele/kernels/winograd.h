// The transforms of Winograd's F(2x2, 3x3) and F(4x4, 3x3) (arXiv 1509.09308), a register of channels at
// a time.
//
// A tile is 4x4 inputs that give 2x2 outputs. With input, kernel and output as matrices d, g, y:
//     y = A^T [(G g G^T) * (B^T d B)] A
// has 16 products where the plain sum has 36. Gradients are the same sum read from the other side:
//     dg = G^T [(A dy A^T) * (B^T d B)] G
// Each transformed value is a matrix of its own: [16][tiles][channels]. A tile of 6x6 inputs gives 4x4
// outputs and has 36 products for 144, with larger errors: only inference has these tiles.
#pragma once

#include "conv.h"
#include "lanes.h"

namespace abele::winograd {

// Convolutions whose channels fill registers of sixteen, and, where a processor has halves of them,
// those whose channels fill only these.
struct Functions {
  void (*forward)(const Conv& conv, const float* x, const float* weight, const float* bias, float* y,
                  int threads, Scratch& scratch);
  void (*gradient_of_images)(const Conv& conv, const float* grad, const float* weight, float* grad_x,
                             int threads, Scratch& scratch);
  void (*gradient_of_weight)(const Conv& conv, const float* grad, const float* x, float* result,
                             int threads, Scratch& scratch);
  void (*pack)(const Conv& conv, const float* weight, float* packed, int points, int threads);
  void (*forward_packed)(const Conv& conv, const void* x, const float* packed, const float* bias,
                         void* y, bool adds, int points, int type, int threads, Scratch& scratch);
};
namespace whole_registers { extern const Functions FUNCTIONS; }
namespace half_registers { extern const Functions FUNCTIONS; }

namespace ABELE_LENGTH {

constexpr int TAPS = 9;
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
  Index rows, cols, shift, edge;          // a tile begins at edge * its place - shift
  Index count() const { return images * rows * cols; }

  // Calls body(pixels) for tiles [first, first + count): pointers to their SIZE x SIZE pixels. Those
  // outside of the image become `outside`.
  template <int SIZE, class Float, class Body>
  void walk(Index first, Index count, Float* data, Float* outside, Body body) const {
    Index image = first / (rows * cols), row = first / cols % rows, col = first % cols;
    Float* pixels[SIZE * SIZE];
    for (Index t = 0; t < count; ++t) {
      const Index y0 = edge * row - shift, x0 = edge * col - shift;
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

// Of vectors that lie STEP apart: B^T d, A^T m and G g of tiles with 2x2 outputs.
struct Small {
  static constexpr int EDGE = 2, SIZE = 4, POINTS = 16;
  template <int STEP>
  static void input(const Vec* d, Vec* t) {
    t[0] = d[0] - d[2 * STEP];
    t[STEP] = d[STEP] + d[2 * STEP];
    t[2 * STEP] = d[2 * STEP] - d[STEP];
    t[3 * STEP] = d[STEP] - d[3 * STEP];
  }
  template <int STEP>
  static void output(const Vec* m, Vec* y) {
    y[0] = m[0] + m[STEP] + m[2 * STEP];
    y[STEP] = m[STEP] - m[2 * STEP] - m[3 * STEP];
  }
  template <int STEP>
  static void kernel(const Vec* g, Vec* u) {
    const Vec half = broadcast(0.5f);
    const Vec ends = (g[0] + g[2 * STEP]) * half, middle = g[STEP] * half;
    u[0] = g[0], u[STEP] = ends + middle, u[2 * STEP] = ends - middle, u[3 * STEP] = g[2 * STEP];
  }
};

// With 4x4 outputs. Polynomials are taken at 0, +-sqrt(1/2), +-sqrt(2) and infinity: where these are
// 0, +-1, +-2, errors are larger.
struct Large {
  static constexpr int EDGE = 4, SIZE = 6, POINTS = 36;
  static constexpr float NEAR = 0.70710678118654752f, FAR = 1.41421356237309505f;
  template <int STEP>
  static void input(const Vec* d, Vec* t) {
    const Vec d1 = d[STEP], d2 = d[2 * STEP], d3 = d[3 * STEP], d4 = d[4 * STEP];
    const Vec near = d4 - 2.0f * d2, odd_near = NEAR * d3 - FAR * d1;
    const Vec far = d4 - 0.5f * d2, odd_far = FAR * d3 - NEAR * d1;
    t[0] = d[0] + d4 - 2.5f * d2, t[5 * STEP] = d1 + d[5 * STEP] - 2.5f * d3;
    t[STEP] = near + odd_near, t[2 * STEP] = near - odd_near;
    t[3 * STEP] = far + odd_far, t[4 * STEP] = far - odd_far;
  }
  template <int STEP>
  static void output(const Vec* m, Vec* y) {
    const Vec near = m[STEP] + m[2 * STEP], odd_near = m[STEP] - m[2 * STEP];
    const Vec far = m[3 * STEP] + m[4 * STEP], odd_far = m[3 * STEP] - m[4 * STEP];
    y[0] = m[0] + near + far, y[STEP] = NEAR * odd_near + FAR * odd_far;
    y[2 * STEP] = 0.5f * near + 2.0f * far;
    y[3 * STEP] = m[5 * STEP] + 0.5f * NEAR * odd_near + 2.0f * FAR * odd_far;
  }
  template <int STEP>
  static void kernel(const Vec* g, Vec* u) {
    const Vec g0 = g[0], g1 = g[STEP], g2 = g[2 * STEP];
    const Vec near = (g0 + 0.5f * g2) * (-2.0f / 3), odd_near = g1 * (-2.0f / 3 * NEAR);
    const Vec far = (g0 + 2.0f * g2) * (1.0f / 6), odd_far = g1 * (FAR / 6);
    u[0] = g0, u[STEP] = near + odd_near, u[2 * STEP] = near - odd_near;
    u[3 * STEP] = far + odd_far, u[4 * STEP] = far - odd_far, u[5 * STEP] = g2;
  }
};

// B^T d B, A^T m A and G g G^T: first columns, then rows.
template <class Form>
void transform_input(const Vec* d, Vec* v) {
  Vec t[Form::POINTS];
#pragma GCC unroll 6
  for (int j = 0; j < Form::SIZE; ++j) Form::template input<Form::SIZE>(d + j, t + j);
#pragma GCC unroll 6
  for (int i = 0; i < Form::POINTS; i += Form::SIZE) Form::template input<1>(t + i, v + i);
}
template <class Form>
void transform_output(const Vec* m, Vec* y) {
  Vec t[Form::EDGE * Form::SIZE];
#pragma GCC unroll 6
  for (int j = 0; j < Form::SIZE; ++j) Form::template output<Form::SIZE>(m + j, t + j);
#pragma GCC unroll 4
  for (int i = 0; i < Form::EDGE; ++i)
    Form::template output<1>(t + i * Form::SIZE, y + i * Form::EDGE);
}
template <class Form>
void transform_kernel(const Vec* g, Vec* u) {
  Vec t[3 * Form::SIZE];
  for (int j = 0; j < 3; ++j) Form::template kernel<3>(g + j, t + j);
  for (int i = 0; i < Form::SIZE; ++i) Form::template kernel<1>(t + 3 * i, u + i * Form::SIZE);
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
