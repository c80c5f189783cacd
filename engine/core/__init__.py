"""One decoding step: schedule, draft, decode, accept, rewind, commit. Start reading at Engine.step().

In: prepared requests.
Out: one StepReport a step, with the completions of the requests that ended.
Public: sequence.SequenceState, engine.Engine, token_tree.Tree, draft_source.DraftSource, engine.ModelInfo,
token_tree.Node.
"""
