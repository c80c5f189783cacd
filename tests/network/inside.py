"""Run Python in the network of another process: `python -m tests.network.inside PID ARGUMENTS...`"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    pid, *arguments = sys.argv[1:]
    network = ["nsenter", "--target", pid, "--net", "--mount"]
    # A folder that was opened outside is on another mount, and no file can be moved between the two.
    there = ["sh", "-c", 'cd "$0" && exec "$@"', str(Path.cwd())]
    os.execvp(network[0], [*network, *there, sys.executable, *arguments])
