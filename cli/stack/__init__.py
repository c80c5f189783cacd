"""The local stack of `medusaq up`: services, models within a memory budget, state files.

In: settings and models.
Out: a running stack.
Public: state_file.running_stack, local_stack.Stack, local_stack.StackOptions, state_file.running_models,
state_file.running_restarts, swap_policy.Phase.
"""
