"""What every process needs first: settings, errors, logs, file syncs, the address of Redis.

In: the environment.
Out: Settings, the errors of this package and helpers without state.
"""
