"""Device tools: ``gc-monitor``, ``gc-info`` and ``gc-inventory`` list devices and their users.

Devices are the processor sockets of this machine and its NVIDIA GPUs. Nothing here imports torch or
the engine: a tool has to answer at once, also beside a run that has the machine to itself. What a
system does not tell is ``N/A``.
"""
