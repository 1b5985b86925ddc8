// The transforms of Winograd's F(2x2, 3x3) and F(4x4, 3x3) (arXiv 1509.09308), a register of channels at
// a time.
//
// A tile is 4x4 inputs that give 2x2 outputs. With input, kernel and output as matrices d, g, y:
//     y = A^T [(G g G^T) * (B^T d B)] A
// has 16 products where the plain sum has 36. Gradients are the same sum read from the other side:
//     dg = G^T [(A dy A^T) * (B^T d B)] G
// Each transformed value is a matrix of its own: [16][tiles][channels]. A tile of 6x6 inputs gives 4x4
// outputs and has 36 products for 144, with larger errors: float32 has these tiles in inference only.
#pragma once

#include "conv.h"
#include "lanes.h"

namespace abele::winograd {

// Convolutions whose channels fill registers of sixteen, and, where a processor has halves of them,
// those whose channels fill only these.
struct Functions {
  void (*forward)(const Conv& conv, const void* x, const void* weight, const float* packed,
                  const float* bias, void* y, bool adds, int points, int threads, Scratch& scratch);
  void (*gradient_of_images)(const Conv& conv, const void* grad, const void* weight, void* grad_x,
                             int threads, Scratch& scratch);
  void (*gradient_of_weight)(const Conv& conv, const void* grad, const void* x, void* result,
                             int threads, Scratch& scratch);
  void (*pack)(const Conv& conv, const float* weight, float* packed, int points, int threads);
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

  // Calls body(pixel) for tiles [first, first + count): pixel(i) is a pointer to that at i of their
  // SIZE x SIZE pixels. Those outside of the image become `outside`.
  template <int SIZE, class Float, class Body>
  void walk(Index first, Index count, Float* data, Float* outside, const Body& body) const {
    Index image = first / (rows * cols), row = first / cols % rows, col = first % cols;
    for (Index t = 0; t < count; ++t) {
      const Index y0 = edge * row - shift, x0 = edge * col - shift, line = width * channels;
      Float* corner = data + (image * height + y0) * line + x0 * channels;
      if (y0 >= 0 && y0 + SIZE <= height && x0 >= 0 && x0 + SIZE <= width) {
        body([=](int i) { return corner + i / SIZE * line + i % SIZE * channels; });
      } else {
        Float* pixels[SIZE * SIZE];
        for (Index i = 0; i < SIZE; ++i)
          for (Index j = 0; j < SIZE; ++j) {
            const Index y = y0 + i, x = x0 + j;
            const bool there = y >= 0 && y < height && x >= 0 && x < width;
            pixels[i * SIZE + j] = there ? corner + i * line + j * channels : outside;
          }
        body([&](int i) { return pixels[i]; });
      }
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
  template <int STEP>
  static void gradient(const Vec* dy, Vec* v) {
    v[0] = dy[0], v[STEP] = dy[0] + dy[STEP], v[2 * STEP] = dy[0] - dy[STEP];
    v[3 * STEP] = -dy[STEP];
  }
  template <int STEP>
  static void kernel_gradient(const Vec* m, Vec* g) {
    const Vec half = broadcast(0.5f), sum = (m[STEP] + m[2 * STEP]) * half;
    g[0] = m[0] + sum, g[STEP] = (m[STEP] - m[2 * STEP]) * half, g[2 * STEP] = sum + m[3 * STEP];
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
  template <int STEP>
  static void gradient(const Vec* dy, Vec* v) {
    const Vec d0 = dy[0], d1 = dy[STEP], d2 = dy[2 * STEP], d3 = dy[3 * STEP];
    const Vec near = d0 + 0.5f * d2, odd_near = NEAR * d1 + 0.5f * NEAR * d3;
    const Vec far = d0 + 2.0f * d2, odd_far = FAR * d1 + 2.0f * FAR * d3;
    v[0] = d0, v[STEP] = near + odd_near, v[2 * STEP] = near - odd_near;
    v[3 * STEP] = far + odd_far, v[4 * STEP] = far - odd_far, v[5 * STEP] = d3;
  }
  template <int STEP>
  static void kernel_gradient(const Vec* m, Vec* g) {
    const Vec near = (m[STEP] + m[2 * STEP]) * (-2.0f / 3), odd_near = m[STEP] - m[2 * STEP];
    const Vec far = (m[3 * STEP] + m[4 * STEP]) * (1.0f / 6), odd_far = m[3 * STEP] - m[4 * STEP];
    g[0] = m[0] + near + far, g[STEP] = odd_near * (-2.0f / 3 * NEAR) + odd_far * (FAR / 6);
    g[2 * STEP] = 0.5f * near + 2.0f * far + m[5 * STEP];
  }
};

using Transform = void(const Vec*, Vec*);
// A matrix of SIZE x SIZE to one of RESULTS x RESULTS, first columns, then rows: load(i) and
// store(i, value) are of element i. Matrices in memory would take as long as the arithmetic.
template <int SIZE, int RESULTS, Transform COLUMN, Transform ROW, class Load, class Store>
__attribute__((always_inline)) inline void transform(const Load& load, const Store& store) {
  Vec t[RESULTS * SIZE];
#pragma GCC unroll 6
  for (int j = 0; j < SIZE; ++j) {
    Vec column[SIZE * SIZE];
#pragma GCC unroll 6
    for (int i = 0; i < SIZE; ++i) column[i * SIZE] = load(i * SIZE + j);
    COLUMN(column, t + j);
  }
#pragma GCC unroll 6
  for (int i = 0; i < RESULTS; ++i) {
    Vec row[RESULTS];
    ROW(t + i * SIZE, row);
#pragma GCC unroll 6
    for (int p = 0; p < RESULTS; ++p) store(i * RESULTS + p, row[p]);
  }
}

}  // namespace ABELE_LENGTH
}  // namespace abele::winograd
