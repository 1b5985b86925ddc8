// The kernels of conv_winograd.cpp with registers of eight channels, which whole ones would leave half
// empty: where the processor multiplies a whole register in two steps, halves are as fast.
#if defined(__AVX512VL__)
#define ABELE_HALF_REGISTERS
#include "conv_winograd.cpp"
#endif
