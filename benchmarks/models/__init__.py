"""Networks that several benchmarks share: plain torch modules with their loss inside.

A forward returns the loss, or other results and the loss last.
"""
