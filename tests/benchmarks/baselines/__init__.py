"""Other programs with the same weights: llama.cpp's server and tools, and llama-cpp-python."""
