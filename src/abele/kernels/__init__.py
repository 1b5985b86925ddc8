"""C++ kernels for the operators in ``abele/ops``, in one library that ``abi.h`` declares.

``build.py`` compiles it. There are two callers: C and C++, emitted programs among them, include
``abi.h``; Python goes through ``binding.py``. ``on_tensors.py`` has convolutions and pools as
functions of tensors.
"""
