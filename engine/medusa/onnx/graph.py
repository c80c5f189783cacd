"""Heads as an ONNX graph: what they compute, in a file that holds all that serving them needs.

Inputs: hidden [R, width], head [] (which of the heads), top [1], and for heads that see what was drafted path
int32 [R, head + 1]. Outputs, best first: tokens int32 [R, top] and probabilities [R, top]; no more than these
leaves the runtime. Weights are integers with a scale for each
block (MatMulNBits of com.microsoft); their products are summed in integers where the processor can.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine.medusa.layouts import HeadsLoadError, first_line
from engine.medusa.onnx.format import (
    ABOUT,
    BITS,
    HIDDEN,
    PATH,
    PROBABILITIES,
    TOKENS,
    WHICH_HEAD,
    WHICH_TOP,
    Sizes,
)
from engine.medusa.weights import Floats, HeadWeights

BLOCK = 32  # weights that share a scale; more lose guesses of full weights (docs/explanation/heads.md)
LAYER_BITS = 8  # always: in 4, one guess in twelve more is lost, and layers are a fraction of what is read
INTEGER_SUMS = 4  # MatMulNBits' accuracy_level
OPSET, IR_VERSION = 17, 8  # of 2022, so that older runtimes read the file too
FLOAT_BYTES = 4
AT_ONCE = 1024  # rows that are 32-bit numbers at a time: all of a large model are gigabytes
LARGEST_BYTES = 2**31 - 2**20  # of an ONNX file, whose container counts in 31 bits


def build(weights: HeadWeights, bits: int) -> bytes:
    """An ONNX file of these heads, with lm_heads of so many bits. Raises HeadsLoadError."""
    if bits not in BITS:
        raise HeadsLoadError(f"weights of {bits} bits: 8 and 4 are supported")
    _check_size(weights, bits)
    shared = weights.lm_heads == 1
    outer = _Part("")
    given = _inputs(outer, weights) if weights.sees_path else HIDDEN
    graph, logits = _choice(weights, 0, given, own_bits=0 if shared else bits)
    graph.nodes[:0], graph.constants[:0] = outer.nodes, outer.constants
    if shared:
        logits = graph.product(logits, weights.lm_head(0), bits, "lm_head")
    if weights.logit_scale != 1.0:
        logits = graph.node("Mul", logits, graph.constant("scale", np.float32(weights.logit_scale)))
    best = helper.make_node("TopK", [graph.node("Softmax", logits), WHICH_TOP], [PROBABILITIES, "rows"])
    if weights.draft_vocabulary is None:
        named = helper.make_node("Cast", ["rows"], [TOKENS], to=TensorProto.INT32)
    else:
        vocabulary = graph.constant("vocabulary", weights.draft_vocabulary)
        named = helper.make_node("Gather", [vocabulary, "rows"], [TOKENS])
    graph.nodes += [best, named]
    try:
        content = _file(graph, weights, bits)
    except ValueError as error:  # a text or number that protobuf does not hold
        raise HeadsLoadError(f"cannot be written as ONNX: {first_line(error)}") from error
    _check_bytes(len(content))  # with the names, and with metadata of any length
    return content


class _Part:
    """A graph, or a branch of one, as it grows."""

    def __init__(self, prefix: str) -> None:
        """prefix: of names, which branches must not share"""
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: NDArray[np.generic] | np.generic) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), self.prefix + name))
        return self.prefix + name

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """The name of its output."""
        output = f"{self.prefix}{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def product(self, rows: str, weight: Floats, bits: int, name: str) -> str:
        """rows [R, width] times weight [n, width], transposed."""
        blocks, scales = quantised(weight, bits)
        return self.node(
            "MatMulNBits",
            rows,
            self.constant(f"{name}_blocks", blocks),
            self.constant(f"{name}_scales", scales),
            domain="com.microsoft",
            N=weight.shape[0],
            K=weight.shape[1],
            bits=bits,
            block_size=BLOCK,
            accuracy_level=INTEGER_SUMS,
        )

    def branch(self, output: str) -> onnx.GraphProto:
        """All of it as a branch, which gives this one."""
        given = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        return helper.make_graph(self.nodes, f"{self.prefix}branch", [], [given], self.constants)


def quantised(weight: Floats, bits: int) -> tuple[NDArray[np.uint8], Floats]:
    """Rows [n, k] as MatMulNBits has them: blocks [n, k / BLOCK, bytes] around the middle of the range, and
    their scales [n, k / BLOCK]."""
    rows, width = weight.shape
    count, middle = -(-width // BLOCK), 2 ** (bits - 1)
    padded = np.zeros((rows, count * BLOCK), dtype=np.float32)
    padded[:, :width] = weight
    blocks = padded.reshape(rows, count, BLOCK)
    scales = np.maximum(np.abs(blocks).max(axis=-1), 1e-12) / (middle - 1)
    integers = (np.rint(blocks / scales[..., None]) + middle).astype(np.uint8)
    if bits == 4:
        integers = integers[..., 0::2] | integers[..., 1::2] << 4
    return integers, scales


def _inputs(part: _Part, weights: HeadWeights) -> str:
    """What the first layers of Hydra heads read: state and embeddings, [R, (2 + head) width]."""
    table, scales = _embeddings_in_8_bits(weights)
    rows = part.node("Gather", part.constant("embeddings", table), PATH)
    whole = part.node("Cast", rows, to=TensorProto.FLOAT)
    scaled = part.node("Mul", whole, part.node("Gather", part.constant("embedding_scales", scales), PATH))
    joined = part.node("Reshape", scaled, part.constant("joined", np.array([0, -1], dtype=np.int64)))
    return part.node("Concat", HIDDEN, joined, axis=1)


def _embeddings_in_8_bits(weights: HeadWeights) -> tuple[NDArray[np.int8], Floats]:
    """Integers [vocab_size, width], and the scale of each row [vocab_size, 1]."""
    table, scales = [], []
    for rows in weights.embedding_blocks(AT_ONCE):
        scales.append(np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-12) / 127)
        table.append(np.rint(rows / scales[-1]).astype(np.int8))
    return np.concatenate(table), np.concatenate(scales)


def _choice(weights: HeadWeights, head: int, given: str, own_bits: int) -> tuple[_Part, str]:
    """The part of the graph that runs the requested head, `head` or a later one, by nested If nodes.

    given: what the first layer reads. Outputs the head's state, or with own_bits the logits of its own
    lm_head. Other branches do not run.
    """
    this, state = _Part(f"head{head}_"), HIDDEN
    for layer in range(weights.layers):
        weight, bias = weights.layer(head, layer)
        product = this.product(state if layer else given, weight, LAYER_BITS, f"layer{layer}")
        row = this.node("Add", product, this.constant(f"bias{layer}", bias))
        state = this.node("Add", state, this.node("Mul", row, this.node("Sigmoid", row)))
    if own_bits:
        state = this.product(state, weights.lm_head(head), own_bits, "lm_head")
    if head == weights.heads - 1:
        return this, state
    later, other = _choice(weights, head + 1, given, own_bits)
    choice = _Part(f"choice{head}_")
    asked = choice.node("Equal", WHICH_HEAD, choice.constant("number", np.int64(head)))
    branches = {"then_branch": this.branch(state), "else_branch": later.branch(other)}
    return choice, choice.node("If", asked, **branches)


def least_bytes(weights: HeadWeights, bits: int) -> int:
    """Of an ONNX file of these heads: all but names and the like."""
    width = weights.width
    inputs = [weights.inputs(head, layer) for head in range(weights.heads) for layer in range(weights.layers)]
    vocabulary = 0 if weights.draft_vocabulary is None else weights.draft_vocabulary.nbytes
    embeddings = weights.vocab_size * (width + FLOAT_BYTES) if weights.sees_path else 0
    return (
        sum(_matrix_bytes(width, one, LAYER_BITS) + FLOAT_BYTES * width for one in inputs)
        + embeddings
        + weights.lm_heads * _matrix_bytes(weights.rows, width, bits)
        + vocabulary
    )


def _matrix_bytes(rows: int, width: int, bits: int) -> int:
    """As quantised() has it, with its scales."""
    return rows * -(-width // BLOCK) * (BLOCK * bits // 8 + FLOAT_BYTES)


def _check_size(weights: HeadWeights, bits: int) -> None:
    _check_bytes(least_bytes(weights, bits))


def _check_bytes(size: int) -> None:
    if size > LARGEST_BYTES:
        raise HeadsLoadError(
            f"takes {size / 1e9:.1f} GB as ONNX, and 2 are the most: medusaq slice-heads cuts heads to a "
            "draft vocabulary"
        )


def _file(graph: _Part, weights: HeadWeights, bits: int) -> bytes:
    inputs = [
        helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, ["R", weights.width]),
        helper.make_tensor_value_info(WHICH_HEAD, TensorProto.INT64, []),
        helper.make_tensor_value_info(WHICH_TOP, TensorProto.INT64, [1]),
    ]
    if weights.sees_path:
        inputs.append(helper.make_tensor_value_info(PATH, TensorProto.INT32, ["R", "P"]))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "heads",
            inputs,
            [
                helper.make_tensor_value_info(TOKENS, TensorProto.INT32, ["R", "top"]),
                helper.make_tensor_value_info(PROBABILITIES, TensorProto.FLOAT, ["R", "top"]),
            ],
            graph.constants,
        ),
        producer_name="medusaq",
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)],
        ir_version=IR_VERSION,
    )
    sizes = Sizes(
        heads=weights.heads,
        layers=weights.layers,
        width=weights.width,
        vocab_size=weights.vocab_size,
        rows=weights.rows,
        bits=bits,
        sees_path=int(weights.sees_path),
    )
    helper.set_model_props(model, {**weights.metadata, ABOUT: sizes.to_json()})
    content: bytes = model.SerializeToString()
    return content
