// The kernels of conv_planes.cpp with half as many samples in a register.
//
// Where the processor multiplies a whole register in two steps, halves are as fast, and sixteen
// samples are work for two threads: each computes its own, waits for nobody, and finds in its cache
// what it wrote in the call before.
#if defined(__AVX512VL__)
#define ABELE_HALF_REGISTERS
#include "conv_planes.cpp"
#endif
