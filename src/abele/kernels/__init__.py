"""C++ kernels of the operators in ``abele/ops``; ``abi.h`` declares their library.

``build.py`` compiles it. C and C++, emitted programs among them, include ``abi.h``; Python calls
through ``binding.py``. ``convolutions.py`` chooses kernels, ``on_tensors.py`` has convolutions and
pools as functions of tensors, and ``self_test.py`` tests each kernel on this machine.
"""
