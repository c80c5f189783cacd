"""The local stack of `medusaq up`: services, several models within one memory, its state file.

In: settings and models.
Out: a running stack.
"""
