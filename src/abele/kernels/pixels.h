// Vectors whose lanes are neighbouring pixels of one image: for few samples.
//
// Rows of a plane follow each other with the zeros of the border between them. Pixel i of the
// output then meets tap (kh, kw) at i + kh * pitch + kw, whatever its row: a plane is one run of
// vectors. What they compute between the end of a row and the begin of the next is dropped.
#pragma once

#include "conv.h"
#include "images.h"

namespace abele::pixels {

// Register blocks of output channels x vectors or taps leave room for the operands.
constexpr int MAX_OUT = REGISTERS == 32 ? 6 : 4;

// The planes of an image with zeros around them; `plane` floats each, more than its rows need.
struct Padded {
  Index channels, height, width, pad_h, pad_w, pitch, plane;

  Index size() const { return channels * plane; }
  Index first() const { return pad_h * pitch + pad_w; }  // the first pixel that is no border
  void fill(Index channel, const float* pixels, float* image) const {
    const float* from = pixels + channel * height * width;
    float *to = image + channel * plane, *end = to + plane;
    to = std::fill_n(to, first(), 0.0f);
    for (Index y = 0; y < height; ++y, from += width) {
      to = std::copy_n(from, width, to);
      if (y + 1 < height) to = std::fill_n(to, pitch - width, 0.0f);
    }
    std::fill(to, end, 0.0f);
  }
};

}  // namespace abele::pixels
