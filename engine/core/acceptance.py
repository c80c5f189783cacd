"""The acceptance rule of draft tokens. Lossless if sampling ignores the candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.base.errors import EngineError
from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT, Draft, Tree
from engine.llama.context import Logits
from engine.sampling.sampler import SampledToken


@dataclass(slots=True)
class Accepted:
    """A ready sequence after acceptance: the tokens to commit, or the error that ends the request."""

    sequence: SequenceState
    draft: Draft
    sampled: list[SampledToken] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)  # the accepted ones of draft.tree, from the root down
    error: EngineError | None = None

    @property
    def last_row(self) -> int:
        """Index of the logits row of the last sampled token: 0 is the pending token, 1 + i is node i."""
        return self.nodes[-1] + 1 if self.nodes else 0


def accept_draft(sequence: SequenceState, draft: Draft, rows: Logits) -> Accepted:
    """rows: [1 + nodes, vocab], the logits after the last token, then after each node of the tree.

    Advances the sequence's sampler (penalties, grammar) past the sampled tokens.
    """
    position = len(sequence.output)
    try:
        sampled, nodes = accept(
            draft.tree,
            lambda node, offset, candidates: sequence.sampler.next(
                rows[node + 1],
                position + offset,
                candidates,  # row 0 is that of ROOT, -1
            ),
        )
    except EngineError as error:
        return Accepted(sequence, draft, error=error)
    return Accepted(sequence, draft, sampled, nodes)


def accept(
    tree: Tree, sample: Callable[[int, int, list[int]], SampledToken]
) -> tuple[list[SampledToken], list[int]]:
    """Walk down the tree while a child has the token that the model itself samples.

    sample(node, offset, candidates) draws the token at this output offset from the target distribution after
    `node`; candidates are the tokens of its children. With n_0 = ROOT and x_k = sample(n_k, k, ..), node
    n_(k+1), the child of n_k with token x_k, is accepted; the walk ends at the first x_k without such a
    child.

    Returns the sampled tokens and the accepted nodes, which are one fewer: the last token has no cell yet.
    Each token is drawn with its own keyed random number, so the tree changes only how many tokens come in one
    step. If sample() raises after an accepted node, the tokens before it are returned: they may end the
    request, and otherwise the next step raises again. Raises EngineError.
    """
    children: dict[int, dict[int, int]] = {}  # node -> token -> child
    for i, node in enumerate(tree):
        children.setdefault(node.parent, {})[node.token] = i
    sampled: list[SampledToken] = []
    accepted: list[int] = []
    at = ROOT
    while True:
        below = children.get(at, {})
        try:
            sampled.append(sample(at, len(sampled), [*below]))
        except EngineError:
            if not sampled:
                raise
            return sampled, accepted[:-1]  # the next step decodes the last one again
        if sampled[-1].token not in below:
            return sampled, accepted
        at = below[sampled[-1].token]
        accepted.append(at)
