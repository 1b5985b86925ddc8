"""Execution of a program as one generated C++ file without torch headers, compiled in seconds.

Elementwise operators become fused loops. GEMMs, convolutions, norms and losses become calls of
templates and library kernels. Everything else stays an ATen call between two segments of the code.
"""
