"""Child processes: start, restart with pauses, locks, ports, signals.

In: specifications of children.
Out: running processes, which end with their parent.
"""
