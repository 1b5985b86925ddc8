"""CUDA C++ that is written for a program: elementwise operators in few kernels, torch's between.

What a program is translated to is shared with the processor's emitter. Here each step is an
operator of torch or a launch, and a launch runs all loops that are ready: the updates of all
parameters are one kernel. NVRTC compiles it in about a second; no host compiler is needed.
"""
