"""Operators of our own, in torch's registry under ``abele``.

Each has a plain implementation by torch's operators, so that programs holding it run anywhere, and
a kernel in ``abele/kernels`` for the targets that compile.
"""
