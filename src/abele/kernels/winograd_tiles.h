// Tiles of images become matrices, and matrices tiles: the steps before and after the products.
//
// Tiles inside of an image that lie side by side need no list of their pixels, and share what their
// neighbour has loaded and transformed; the others are taken one by one.
#pragma once

#include "winograd.h"

namespace abele::winograd::ABELE_LENGTH {

// Rows or columns of tiles all of whose `size` pixels are in an image of so many.
inline Part inside_of(Index pixels, const Tiles& tiles, Index size) {
  const Index first = ceil_div(tiles.shift, tiles.edge), last = pixels + tiles.shift - size;
  return {first, last < 0 ? 0 : std::max<Index>(last / tiles.edge + 1 - first, 0)};
}

// Calls inside(corner, at, n) for tiles first + at, ... that lie side by side in their image, the first
// pixel of which is at `corner`, and beside(at, n) for the others.
template <int SIZE, class Inside, class Beside>
void in_order(const Tiles& tiles, Index first, Index count, Inside inside, Beside beside) {
  const Part rows = inside_of(tiles.height, tiles, SIZE), cols = inside_of(tiles.width, tiles, SIZE);
  for (Index at = 0; at < count;) {
    const Index col = (first + at) % tiles.cols, line = (first + at) / tiles.cols;
    const Index row = line % tiles.rows, image = line / tiles.rows;
    const Index some = std::min(count - at, tiles.cols - col);
    const bool there = row >= rows.begin && row < rows.begin + rows.size;
    const Index begin = there ? std::clamp<Index>(cols.begin - col, 0, some) : some;
    const Index end = std::clamp(cols.begin + cols.size - col, begin, some);
    const Index y = tiles.edge * row - tiles.shift;
    const Index x = tiles.edge * (col + begin) - tiles.shift;
    if (begin > 0) beside(at, begin);
    if (end > begin)
      inside(((image * tiles.height + y) * tiles.width + x) * tiles.channels, at + begin,
             end - begin);
    if (some > end) beside(at + end, some - end);
    at += some;
  }
}

// Transforms tiles [first, first + count) of images into [POINTS][count][pitch].
template <int SIZE, int POINTS, void TRANSFORM(const Vec*, Vec*), class T>
void transform_slowly(const Tiles& tiles, const T* data, const float* zeros, Index first,
                      Index count, Index matrix, float* to) {
  const Index whole = tiles.channels / LANES * LANES, rest = tiles.channels - whole;
  const Index step = tiles.edge * tiles.channels;
  const auto some = [&](const T* const* pixels, Index c, auto load) {
    Vec values[SIZE * SIZE], transformed[POINTS];
#pragma GCC unroll 36
    for (int i = 0; i < SIZE * SIZE; ++i) {
      values[i] = load(pixels[i] + c);
      // What the next tile reads and this one does not.
      if (SIZE == 2 || i % SIZE >= 2) __builtin_prefetch(pixels[i] + step + c);
    }
    TRANSFORM(values, transformed);
#pragma GCC unroll 36
    for (int p = 0; p < POINTS; ++p) store(to + p * matrix + c, transformed[p]);
  };
  const T* outside = reinterpret_cast<const T*>(zeros);
  tiles.walk<SIZE>(first, count, data, outside, [&](const T* const* pixels) {
    for (Index c = 0; c < whole; c += LANES)
      some(pixels, c, [](const T* from) { return load(from); });
    if (rest > 0) some(pixels, whole, [&](const T* from) { return load_some(from, rest); });
    to += pitch(tiles.channels);
  });
}

// The same for inputs of `count` tiles side by side; two columns of each are the next one's, too.
template <class Form, class T>
void transform_inputs_inside(const Tiles& tiles, const T* corner, Index count, Index matrix,
                             float* to) {
  constexpr int SIZE = Form::SIZE, EDGE = Form::EDGE;
  const Index line = tiles.width * tiles.channels;
  for (Index c = 0; c < tiles.channels; c += LANES) {
    const T* from = corner + c;
    float* out = to + c;
    Vec t[Form::POINTS];
    const auto column = [&](int j) {
      Vec d[Form::POINTS];
#pragma GCC unroll 6
      for (int i = 0; i < SIZE; ++i) d[SIZE * i] = load(from + i * line);
      Form::template input<SIZE>(d, t + j);
      from += tiles.channels;
    };
    column(0), column(1);
    for (Index k = 0; k < count; ++k, out += pitch(tiles.channels)) {
#pragma GCC unroll 4
      for (int j = 2; j < SIZE; ++j) column(j);
#pragma GCC unroll 6
      for (int i = 0; i < Form::POINTS; i += SIZE) {
        Vec v[SIZE];
        Form::template input<1>(t + i, v);
#pragma GCC unroll 6
        for (int p = 0; p < SIZE; ++p) store(out + (i + p) * matrix, v[p]);
        t[i] = t[i + EDGE], t[i + 1] = t[i + EDGE + 1];
      }
    }
  }
}

// Likewise for gradients of outputs.
inline void transform_gradients_inside(const Tiles& tiles, const float* corner, Index count,
                                       Index matrix, float* to) {
  const Index channels = tiles.channels, line = tiles.width * channels;
  for (Index k = 0; k < count; ++k, corner += 2 * channels, to += pitch(channels))
    for (Index c = 0; c < channels; c += LANES) {
      const float* from = corner + c;
      const Vec dy[4] = {load(from), load(from + channels), load(from + line),
                         load(from + line + channels)};
      Vec v[Small::POINTS];
      transform_gradient(dy, v);
#pragma GCC unroll 16
      for (int p = 0; p < Small::POINTS; ++p) store(to + p * matrix + c, v[p]);
    }
}

// Tiles [first, first + count) of inputs, or of gradients of outputs, as [POINTS][count][pitch].
template <class Form, class T>
void transform_inputs(const Tiles& tiles, const T* data, const float* zeros, Index first,
                      Index count, Index matrix, float* to) {
  const Index step = pitch(tiles.channels);
  const auto slowly = [&](Index at, Index n) {
    transform_slowly<Form::SIZE, Form::POINTS, transform_input<Form>>(tiles, data, zeros, first + at, n,
                                                                      matrix, to + at * step);
  };
  if (tiles.channels % LANES != 0) return slowly(0, count);
  in_order<Form::SIZE>(tiles, first, count, [&](Index corner, Index at, Index n) {
    transform_inputs_inside<Form>(tiles, data + corner, n, matrix, to + at * step);
  }, slowly);
}
inline void transform_gradients(const Tiles& tiles, const float* data, const float* zeros,
                                Index first, Index count, Index matrix, float* to) {
  const Index step = pitch(tiles.channels);
  const auto slowly = [&](Index at, Index n) {
    transform_slowly<2, Small::POINTS, transform_gradient>(tiles, data, zeros, first + at, n, matrix,
                                                           to + at * step);
  };
  if (tiles.channels % LANES != 0) return slowly(0, count);
  in_order<2>(tiles, first, count, [&](Index corner, Index at, Index n) {
    transform_gradients_inside(tiles, data + corner, n, matrix, to + at * step);
  }, slowly);
}

struct Finish {
  const float* bias;  // of as many floats as whole registers have
  float slope;
  bool adds;  // what the results are written over is added before the activation
};

// Some channels of the outputs of a tile, from its matrices; `before(i)` loads what they are written
// over.
template <class Form, class Before>
void outputs_of_tile(const float* from, Index matrix, const Finish& finish, Index c, Vec* outputs,
                     Before before) {
  Vec products[Form::POINTS];
#pragma GCC unroll 36
  for (int p = 0; p < Form::POINTS; ++p) products[p] = load(from + p * matrix + c);
  transform_output<Form>(products, outputs);
  const Vec bias = load(finish.bias + c);
#pragma GCC unroll 16
  for (int i = 0; i < Form::EDGE * Form::EDGE; ++i) {
    Vec z = outputs[i] + bias;
    if (finish.adds) z += before(i);
    outputs[i] = z > 0.0f ? z : z * finish.slope;
  }
}

// Writes the outputs of tiles from their matrices; pixels beside the image go to `nowhere`.
template <class Form, class T>
void write_slowly(const Tiles& tiles, const float* from, Index matrix, Index first, Index count,
                  const Finish& finish, float* nowhere, T* data) {
  constexpr int PIXELS = Form::EDGE * Form::EDGE;
  const Index whole = tiles.channels / LANES * LANES, rest = tiles.channels - whole;
  const auto some = [&](T* const* pixels, Index c, auto load, auto store) {
    Vec outputs[PIXELS];
    outputs_of_tile<Form>(from, matrix, finish, c, outputs,
                          [&](int i) { return load(pixels[i] + c); });
#pragma GCC unroll 16
    for (int i = 0; i < PIXELS; ++i) store(pixels[i] + c, outputs[i]);
  };
  T* outside = reinterpret_cast<T*>(nowhere);
  tiles.walk<Form::EDGE>(first, count, data, outside, [&](T* const* pixels) {
    for (Index c = 0; c < whole; c += LANES)
      some(pixels, c, [](const T* at) { return load(at); },
           [](T* to, Vec value) { store(to, value); });
    if (rest > 0)
      some(pixels, whole, [&](const T* at) { return load_some(at, rest); },
           [&](T* to, Vec value) { store_some(to, value, rest); });
    from += pitch(tiles.channels);
  });
}

// The same of `count` tiles that lie side by side.
template <class Form, class T>
void write_inside(const Tiles& tiles, const float* from, Index matrix, Index count,
                  const Finish& finish, T* corner) {
  constexpr int EDGE = Form::EDGE;
  const Index channels = tiles.channels, line = tiles.width * channels;
  for (Index k = 0; k < count; ++k, from += pitch(channels), corner += EDGE * channels)
    for (Index c = 0; c < channels; c += LANES) {
      Vec outputs[EDGE * EDGE];
      const auto at = [&](int i) { return corner + i / EDGE * line + i % EDGE * channels + c; };
      outputs_of_tile<Form>(from, matrix, finish, c, outputs, [&](int i) { return load(at(i)); });
#pragma GCC unroll 16
      for (int i = 0; i < EDGE * EDGE; ++i) store(at(i), outputs[i]);
    }
}

template <class Form, class T>
void write_tiles(const Tiles& tiles, const float* from, Index matrix, Index first, Index count,
                 const Finish& finish, float* nowhere, T* data) {
  const Index step = pitch(tiles.channels);
  const auto slowly = [&](Index at, Index n) {
    write_slowly<Form>(tiles, from + at * step, matrix, first + at, n, finish, nowhere, data);
  };
  if (tiles.channels % LANES != 0) return slowly(0, count);
  in_order<Form::EDGE>(tiles, first, count, [&](Index corner, Index at, Index n) {
    write_inside<Form>(tiles, from + at * step, matrix, n, finish, data + corner);
  }, slowly);
}

}  // namespace abele::winograd::ABELE_LENGTH
