"""What puts faults in: a proxy, a full disk, a clock that is moved, a worker with other constants."""
