"""Finds duplicate custom_ids with a temporary SQLite file, since an input may exceed the memory."""

from __future__ import annotations

import sqlite3

from cli.base.errors import CliError


class CustomIdIndex:
    """The custom_ids of one input file. SQLite caches two megabytes, and deletes the file on close()."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")
        self._database.execute("CREATE TABLE seen (id TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID")

    def first(self, custom_id: str, line: int) -> int:
        """The first line with this id, which may be this one. Raises CliError."""
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
