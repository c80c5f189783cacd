"""A hub on loopback that speaks as much of the hub's API as huggingface_hub asks for."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "c0ffee" * 6 + "abcd"
INFO = re.compile(r"/api/models/([^/]+/[^/?]+)(?:/revision/[^/?]+)?(?:\?.*)?")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/[^/]+/([^?]+)")


@dataclass
class Repository:
    """files: their contents. cut: of these, the first half is sent at most, and the connection closed."""

    files: dict[str, bytes]
    gated: bool = False
    cut: set[str] = field(default_factory=set)


class SmallHub:
    """Serves `repositories` by name until stop()."""

    def __init__(self, repositories: dict[str, Repository]) -> None:
        self.asked: list[str] = []  # files whose contents were asked for
        self.resumed: list[int] = []  # bytes that were there when a file was asked for
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, repositories))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(hub: SmallHub, repositories: dict[str, Repository]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, *args: Any) -> None:
            pass

        def _answer(self, body: bool) -> None:
            info, file = INFO.fullmatch(self.path), FILE.fullmatch(self.path)
            name = (info or file or [None, ""])[1]
            repository = repositories.get(name)
            if repository is None:
                self._refuse(404, "RepoNotFound", "Repository not found")
            elif info:
                self._send_info(name, repository)
            elif repository.gated:
                self._refuse(403, "GatedRepo", f"Access to model {name} is restricted")
            elif file and file[2] in repository.files:
                self._send_file(repository, file[2], body)
            else:
                self._refuse(404, "EntryNotFound", "Entry not found")

        def _refuse(self, status: int, code: str, message: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", message)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _send_info(self, name: str, repository: Repository) -> None:
            siblings = [{"rfilename": file, "size": len(data)} for file, data in repository.files.items()]
            said = json.dumps({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def _send_file(self, repository: Repository, file: str, body: bool) -> None:
            data = repository.files[file]
            begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
            self.send_response(206 if begin else 200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - begin))
            self.end_headers()
            if body:
                hub.asked.append(file)
                hub.resumed.append(begin)
                end = len(data) if file not in repository.cut else max(begin, len(data) // 2)
                self.wfile.write(data[begin:end])

    return Handler
