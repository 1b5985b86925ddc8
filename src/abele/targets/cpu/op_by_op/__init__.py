"""Running a program operator by operator, with torch's library kernels and our own.

The other way to run a program on a processor is to compile it. Networks of large convolutions gain
nothing from that and wait minutes for it: their time goes to the library's convolutions and to
memory. This way needs no compiler for the program, only the kernels of ``abele/kernels``, which
are compiled once per machine.
"""
