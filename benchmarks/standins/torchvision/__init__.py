"""Stands in for torchvision where that does not import beside torch: made-up data, real shapes.

It has what the examples of PyTorch use of it, so that they run unedited, without a download. Its
networks have the layers of the published ones, and its pictures come from a seed.
"""

from torchvision import datasets, models, transforms

__all__ = ["datasets", "models", "transforms"]
