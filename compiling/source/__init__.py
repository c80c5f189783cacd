"""The source of a compilation: a hub's name, a checkpoint or a GGUF, converted by llama.cpp's converter.

In: a name or a path.
Out: a GGUF with full precision.
Public: converter.find, hub.choose, hub.looks_like_a_name, source.prepare.
"""
