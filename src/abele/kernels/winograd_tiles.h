// Tiles of images become matrices, and matrices tiles: the steps before and after the products.
#pragma once

#include "winograd.h"

namespace abele::winograd::ABELE_LENGTH {

// The transforms of tiles of inputs, which overlap, and of gradients of outputs.
template <class Form>
struct Inputs {
  static constexpr int SIZE = Form::SIZE;
  template <int STEP>
  static void columns(const Vec* d, Vec* t) { Form::template input<STEP>(d, t); }
};
template <class Form>
struct OutputGradients {
  static constexpr int SIZE = Form::EDGE;
  template <int STEP>
  static void columns(const Vec* dy, Vec* t) { Form::template gradient<STEP>(dy, t); }
};

// Transforms tiles [first, first + count) of images into [POINTS][count][pitch].
template <class Form, template <class> class Kind, class T>
void transform_tiles(const Tiles& tiles, const T* data, const float* zeros, Index first,
                     Index count, Index matrix, float* to) {
  using Of = Kind<Form>;
  constexpr int SIZE = Of::SIZE;
  const Index whole = tiles.channels / LANES * LANES, rest = tiles.channels - whole;
  const Index step = tiles.edge * tiles.channels;
  const T* outside = reinterpret_cast<const T*>(zeros);
  tiles.walk<SIZE>(first, count, data, outside, [&](const auto& pixel) {
    const auto some = [&](Index c, const auto& load) {
      const auto value = [&](int i) {
        // What the next tile reads and this one does not.
        if (i % SIZE >= SIZE - Form::EDGE) __builtin_prefetch(pixel(i) + step + c);
        return load(pixel(i) + c);
      };
      transform<SIZE, Form::SIZE, Of::template columns<SIZE>, Of::template columns<1>>(
          value, [&](int p, Vec result) { store(to + p * matrix + c, result); });
    };
    for (Index c = 0; c < whole; c += LANES) some(c, [](const T* from) { return load(from); });
    if (rest > 0) some(whole, [&](const T* from) { return load_some(from, rest); });
    to += pitch(tiles.channels);
  });
}

struct Finish {
  const float* bias;  // of as many floats as whole registers have
  float slope;
  bool adds;  // what the results are written over is added before the activation
};

// Writes some channels of the outputs of tiles from their matrices; `data` begins at the first of them.
// Pixels beside the image go to `nowhere`.
template <class Form, class T>
void write_tiles(const Tiles& tiles, Index channels, const float* from, Index matrix, Index first,
                 Index count, const Finish& finish, float* nowhere, T* data) {
  constexpr int SIZE = Form::SIZE;
  const Index whole = channels / LANES * LANES, rest = channels - whole;
  T* outside = reinterpret_cast<T*>(nowhere);
  tiles.walk<Form::EDGE>(first, count, data, outside, [&](const auto& pixel) {
    const auto some = [&](Index c, const auto& load_pixel, const auto& store_pixel) {
      const Vec bias = load(finish.bias + c);
      const auto product = [&](int p) { return load(from + p * matrix + c); };
      transform<SIZE, Form::EDGE, Form::template output<SIZE>, Form::template output<1>>(
          product, [&](int i, Vec z) {
            z += bias;
            if (finish.adds) z += load_pixel(pixel(i) + c);
            store_pixel(pixel(i) + c, z > 0.0f ? z : z * finish.slope);
          });
    };
    for (Index c = 0; c < whole; c += LANES)
      some(c, [](const T* at) { return load(at); }, [](T* to, Vec value) { store(to, value); });
    if (rest > 0)
      some(whole, [&](const T* at) { return load_some(at, rest); },
           [&](T* to, Vec value) { store_some(to, value, rest); });
    from += pitch(channels);
  });
}

}  // namespace abele::winograd::ABELE_LENGTH
