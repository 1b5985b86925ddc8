"""Ports plain PyTorch programs to PopTorch by rewriting their source, with a reason per line.

``source`` reads files, ``analysis`` resolves names and finds training steps, ``rules`` edit one
construct each, ``engine`` applies them, ``files`` writes the result, and ``check`` compares a run
of the port with a run of the original.
"""
