"""Device-independent translation of programs to operations on buffers, and C++ loops.

The code generators of the CPU (``targets/cpu/emitted``) and of GPUs (``targets/cuda/emitted``)
add their own kernels to it.
"""
