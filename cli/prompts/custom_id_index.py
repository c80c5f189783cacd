"""Which custom_id was on which line first, in a temporary file: input files have no limit, memory has."""

from __future__ import annotations

import sqlite3

from cli.base.errors import CliError


class CustomIdIndex:
    """Of one file. SQLite keeps the most recent two megabytes in memory, and drops the file on close()."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")
        self._database.execute("CREATE TABLE seen (id TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID")

    def first(self, custom_id: str, line: int) -> int:
        """The first line that had this id: this one, if none had. Raises CliError."""
        try:
            added = self._database.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (custom_id, line))
            if added.rowcount:
                return line
            known = self._database.execute("SELECT line FROM seen WHERE id = ?", (custom_id,))
            return int(known.fetchone()[0])
        except sqlite3.Error as error:
            raise CliError(f"the temporary folder cannot hold the list of custom_ids: {error}") from None

    def close(self) -> None:
        self._database.close()
