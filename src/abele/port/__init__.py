"""Ports plain PyTorch programs to PopTorch: rules over the source, each line with its reason.

``source`` reads files, ``analysis`` knows what their names stand for and where they train,
``rules`` edit one construct each, ``engine`` applies them, ``files`` writes the result,
and ``check`` runs it beside the original.
"""
