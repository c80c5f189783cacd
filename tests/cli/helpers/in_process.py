"""Runs the command in the process of the tests, which has loaded everything already."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO, TextIOWrapper

import pytest

from cli.main import main
from tasks.base.settings import get_settings
from tests.cli.helpers.running import Cli


class InProcessCli:
    """Called as Cli is, with its folder and variables: for what the command says, not for its process."""

    def __init__(self, cli: Cli) -> None:
        self.folder = cli.folder
        self.env = cli.env

    def __call__(
        self, *arguments: object, stdin: bytes = b"", **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = ["medusaq", *map(str, arguments)]
        wanted = {**self.env, **env}
        out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name in os.environ.keys() - wanted.keys():
                patch.delenv(name)
            for name, value in wanted.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", command)
            patch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin), "utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            get_settings.cache_clear()
            try:
                with pytest.raises(SystemExit) as ended:
                    main()
            finally:
                get_settings.cache_clear()
        said = [file.buffer.getvalue().decode() for file in (out, err)]  # type: ignore[attr-defined]
        assert isinstance(ended.value.code, int)
        return subprocess.CompletedProcess(command, ended.value.code, *said)
