"""Heads as ONNX: the file format, the graph, export, and ONNX Runtime.

In: weights of heads.
Out: an ONNX file, and the heads that run it.
Public: heads.OnnxHeads, graph.build, export.export.
"""
