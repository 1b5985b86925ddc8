"""A program as operations on memory, and the text of its loops: where code for any device begins.

Processors (``targets/cpu/emitted``) and GPUs (``targets/cuda/emitted``) each say in a dialect what
their code knows beside.
"""
