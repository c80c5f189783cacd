"""A ggml backend in C++ for the layers of a model: attention, products with quantised weights, and the rest.

In: the compiler and the headers that are here.
Out: a library that llama.cpp loads; engine/llama/kernels.py does.
Public: build.library, build.KernelsMissing.
"""
