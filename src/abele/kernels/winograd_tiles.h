// Tiles of images become matrices, and matrices tiles: the steps before and after the products.
#pragma once

#include "winograd.h"

namespace abele::winograd::ABELE_LENGTH {

// Transforms tiles [first, first + count) of images into [16][count][pitch].
template <int SIZE, void TRANSFORM(const Vec*, Vec*)>
void transform(const Tiles& tiles, const float* data, const float* zeros, Index first, Index count,
               Index matrix, float* to) {
  const Index whole = tiles.channels / LANES * LANES, rest = tiles.channels - whole;
  const Index step = 2 * tiles.channels;
  const auto some = [&](const float* const* pixels, Index c, auto load) {
    Vec values[SIZE * SIZE], transformed[POINTS];
#pragma GCC unroll 16
    for (int i = 0; i < SIZE * SIZE; ++i) {
      values[i] = load(pixels[i] + c);
      // What the next tile reads and this one does not.
      if (SIZE == 2 || i % SIZE >= 2) __builtin_prefetch(pixels[i] + step + c);
    }
    TRANSFORM(values, transformed);
#pragma GCC unroll 16
    for (int p = 0; p < POINTS; ++p) store(to + p * matrix + c, transformed[p]);
  };
  tiles.walk<SIZE>(first, count, data, zeros, [&](const float* const* pixels) {
    for (Index c = 0; c < whole; c += LANES)
      some(pixels, c, [](const float* from) { return load(from); });
    if (rest > 0)
      some(pixels, whole, [&](const float* from) { return load_some(from, rest); });
    to += pitch(tiles.channels);
  });
}

// Tiles [first, first + count) of inputs, or of gradients of outputs, as [16][count][pitch].
inline void transform_inputs(const Tiles& tiles, const float* data, const float* zeros, Index first,
                             Index count, Index matrix, float* to) {
  transform<4, transform_input>(tiles, data, zeros, first, count, matrix, to);
}
inline void transform_gradients(const Tiles& tiles, const float* data, const float* zeros,
                                Index first, Index count, Index matrix, float* to) {
  transform<2, transform_gradient>(tiles, data, zeros, first, count, matrix, to);
}

// Some channels of the four outputs of a tile, from its matrices.
inline void outputs_of_tile(const float* from, Index matrix, const float* bias, Index c,
                            Vec* outputs) {
  Vec products[POINTS];
#pragma GCC unroll 16
  for (int p = 0; p < POINTS; ++p) products[p] = load(from + p * matrix + c);
  transform_output(products, outputs);
  const Vec of_bias = load(bias + c);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) outputs[i] += of_bias;
}

// Writes the outputs of tiles from their matrices; pixels beside the image go to `nowhere`. `bias` has
// as many floats as whole registers.
inline void write_tiles(const Tiles& tiles, const float* from, Index matrix, Index first,
                        Index count, const float* bias, float* nowhere, float* data) {
  const Index whole = tiles.channels / LANES * LANES, rest = tiles.channels - whole;
  const auto some = [&](float* const* pixels, Index c, auto store) {
    Vec outputs[4];
    outputs_of_tile(from, matrix, bias, c, outputs);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) store(pixels[i] + c, outputs[i]);
  };
  tiles.walk<2>(first, count, data, nowhere, [&](float* const* pixels) {
    for (Index c = 0; c < whole; c += LANES)
      some(pixels, c, [](float* to, Vec value) { store(to, value); });
    if (rest > 0)
      some(pixels, whole, [&](float* to, Vec value) { store_some(to, value, rest); });
    from += pitch(tiles.channels);
  });
}

}  // namespace abele::winograd::ABELE_LENGTH
