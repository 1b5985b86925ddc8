"""Generated CUDA C++ of a program: fused elementwise kernels between torch's kernels.

Translation is shared with the CPU's code generator. Here each step is an ATen call or a kernel
launch, and a launch runs all loops that are ready: the updates of all parameters are one kernel.
NVRTC compiles it in about a second; no host compiler is needed.
"""
