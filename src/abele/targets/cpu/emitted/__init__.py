"""Running a program as C++ written for it: one file, no headers of torch, seconds to compile.

Elementwise operators become loops, fused where one reads what another made; matrix products,
convolutions, norms and losses become calls of templates and of the library; everything else is
called as torch has it, between two pieces of the code.
"""
