"""Child processes: start, restart with pauses, locks, ports, signals.

In: specifications of children.
Out: running processes, which end with their parent.
Public: supervisor.ChildSpec, folder_lock.FolderLock, signals.Interrupts, restart_backoff.Restart,
ports.check_port_free, supervisor.Supervisor.
"""
