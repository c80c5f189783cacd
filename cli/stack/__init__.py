"""The local stack of `medusaq up`: services, models within a memory budget, state files.

In: settings and models.
Out: a running stack.
"""
