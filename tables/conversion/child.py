"""The child process: `python -m tables.conversion.child NUMBER`.

NUMBER is an open file with the specification in JSON, in which files are numbers of open files too. Standard
output gets the verdict, one JSON object: {"code", "message"} of an error, {"cut"} of an output, else {}.
The process ends with the one that has started it, when standard input closes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.disk_space import reason
from tables.answers.schema import check_schema
from tables.base.errors import TableError
from tables.base.kinds import kind_of
from tables.base.table import Table
from tables.conversion.options import TableOptions, Wanted
from tables.conversion.output_table import OutputTable, write_numbered
from tables.conversion.preview import write_preview
from tables.conversion.request_lines import LineLimits, TableRefused, write_lines
from tables.sources.open_table import open_table

TABLE_INVALID, TOO_LARGE, INTERNAL, STORAGE = "invalid_table", "table_too_large", "internal_error", "storage"
OPEN_FILES = Path("/proc/self/fd")  # on Linux: opens a file anew, at its beginning
NICENESS = 5


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):  # they strike the parent too, which ends this process
        signal.signal(ignored, signal.SIG_IGN)
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        file.seek(0)
        specification = json.load(file)
    folder = Path(specification["folder"])
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    _limit(specification["cpu_s"], specification["memory_bytes"], specification["file_bytes"])
    print(json.dumps(_verdict(specification)), flush=True)
    os._exit(0)  # the thread waits for standard input


def _verdict(specification: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _convert(specification)
    except TableRefused as error:
        return {"code": error.code, "message": str(error)}
    except TableError as error:
        return {"code": TABLE_INVALID, "message": str(error)}
    except MemoryError:
        most = specification["memory_bytes"] >> 20
        return {"code": TOO_LARGE, "message": f"the table takes more than {most:,} MiB of memory"}
    except Exception as error:
        if os.strerror(errno.EFBIG) in str(error):  # also DuckDB's
            most = specification["file_bytes"]
            return {"code": TOO_LARGE, "message": f"the table takes more than {most:,} bytes on the disk"}
        if isinstance(error, OSError):
            return {
                "code": STORAGE,
                "message": f"temporary files in {tempfile.gettempdir()}: {reason(error)}",
            }
        traceback.print_exc()
        return {"code": INTERNAL, "message": "an internal error, which the log describes"}


def _convert(specification: Mapping[str, Any]) -> dict[str, Any]:
    options = TableOptions(**specification["options"])
    folder = Path(specification["folder"])
    with _table(specification["table"], options.name, folder) as table:
        if "preview" in specification:
            _preview(specification, table, options, folder)
            return {}
        if "lines" in specification:
            limits = LineLimits(**specification["limits"])
            with os.fdopen(specification["lines"], "wb") as out:
                write_lines(table, options, specification["url"], limits, out)
            return {}
        wanted = specification["output"]
        output = OutputTable(
            table,
            None if options.schema is None else check_schema(options.schema, "schema"),
            columns=options.columns,
            usage=wanted["usage"],
            safe_csv=wanted["safe_csv"],
            extras=options.extras(),
        )
        with contextlib.ExitStack() as opened:
            results = [opened.enter_context(os.fdopen(n, "rb")) for n in specification["results"]]
            writer = opened.enter_context(output.opened(folder / wanted["name"]))
            write_numbered(output.rows(wanted["name"]), results, writer)
        return {"cut": output.cut}


def _preview(specification: Mapping[str, Any], table: Table, options: TableOptions, folder: Path) -> None:
    asked = dict(specification["preview"])
    limits = LineLimits(**specification["limits"])
    with (folder / asked.pop("name")).open("w", encoding="utf-8") as out:
        write_preview(table, options, specification["url"], Wanted(**asked), limits, out)


@contextlib.contextmanager
def _table(number: int, name: str, folder: Path) -> Iterator[Table]:
    """The table in an open file. Messages of libraries that name the file get its own name."""
    path = folder / ("table" + Path(name).suffix)  # openpyxl wants an ending
    if OPEN_FILES.is_dir():
        path.symlink_to(OPEN_FILES / str(number))
    else:
        with os.fdopen(number, "rb") as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    try:
        yield open_table(path, name=name, kind=kind_of(name))
    except TableRefused:
        raise
    except TableError as error:
        raise TableError(str(error).replace(str(path), name)) from None


def _limit(cpu_s: int, memory_bytes: int, file_bytes: int) -> None:
    """Of this process; it is new, and has used no time."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # Linux: where memory is short this process is killed, and no other
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    with contextlib.suppress(OSError, ValueError):  # not on every system: there the time limit bounds it
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _end_with_parent(folder: Path) -> None:
    sys.stdin.buffer.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main()
