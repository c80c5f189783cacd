"""A ggml backend in C++ for what is slow in llama.cpp: attention, and products with quantised weights.

In: the compiler and the headers that are here.
Out: a library that llama.cpp loads; engine/llama/kernels.py does.
Public: build.library, build.KernelsMissing.
"""
