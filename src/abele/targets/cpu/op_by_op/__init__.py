"""Operator-by-operator execution on the CPU, with torch's kernels and abele's library.

The alternative to compiling a program. Networks of large convolutions gain nothing from compilation
and wait minutes for it: their time goes to the library's convolutions and to memory. No compiler is
needed for the program, only for the kernels of ``abele/kernels``, once per machine.
"""
