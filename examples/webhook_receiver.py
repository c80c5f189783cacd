"""A receiver of webhooks: verifies what comes, and prints each event once.

pip install standardwebhooks
WEBHOOK_SECRET=$(medusaq webhooks secret) python examples/webhook_receiver.py 8000
"""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

verifier = Webhook(os.environ["WEBHOOK_SECRET"])
seen: set[str] = set()  # in earnest: in your database, in the transaction that acts on the event


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            event = verifier.verify(body, dict(self.headers))
        except WebhookVerificationError as error:
            self.send_error(400, str(error))
            return
        if event["id"] not in seen:  # the same event may come more than once
            seen.add(event["id"])
            print(event["type"], event["data"]["id"], event["data"]["status"], flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
