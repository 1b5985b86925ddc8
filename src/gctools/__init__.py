"""The machine's devices and who holds them: ``gc-monitor``, ``gc-info`` and ``gc-inventory``.

Devices are the processor sockets of this machine and its NVIDIA GPUs. Nothing here imports torch or
the engine: a tool has to answer at once, also beside a run that has the machine to itself. What a
system does not tell is ``N/A``.
"""
