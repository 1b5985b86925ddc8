"""A replacement of the package `horovod` where it is not installed.

`popdist._instances` makes this folder that package; `horovod.torch` is all there is of it.
"""
