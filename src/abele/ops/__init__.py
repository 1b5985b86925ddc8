"""Custom operators in torch's registry, namespace ``abele``.

Each has a plain implementation by torch's operators, so that programs with it run everywhere, and a
kernel in ``abele/kernels`` for the targets that compile.
"""
