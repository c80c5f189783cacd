"""The picture of the processes and what goes between them, by `python -m docs.pictures.architecture`."""

from __future__ import annotations

from pathlib import Path

from docs.pictures.svg import arrow, box, card, text

PICTURE = Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT = 1000, 464
TITLE = (
    "Clients send prompts and files to the gateway. The gateway puts jobs into Redis. Model workers claim "
    "them and write results. Io workers turn files into jobs and results into files, and send webhooks."
)
TOP, BELOW = 64, 340  # of the two rows
LINE = 21.6  # between lines of text

# kind, x, y, width, height, title, lines below it
BOXES: list[tuple[str, int, int, int, int, str, list[str]]] = [
    ("outside", 24, TOP, 156, 132, "Clients", ["medusaq run", "OpenAI's client", "curl, any HTTP"]),
    ("gateway", 268, TOP, 164, 132, "Gateway", ["FastAPI", "API keys, limits", "jobs, chat, batches"]),
    ("redis", 520, TOP, 164, 132, "Redis", ["job records", "Celery's queues", "leases, quotas"]),
    ("files", 268, BELOW, 164, 100, "File store", ["a folder or a bucket", "inputs, outputs"]),
    ("io", 520, BELOW, 164, 100, "Io worker", ["runs batches", "requeues lost jobs"]),
    (
        "outside",
        772,
        BELOW,
        204,
        100,
        "Webhook receivers",
        ["ends of jobs, batches", "signed, retried for days"],
    ),
]
WORKER = (772, TOP, 204, 254)  # x, y, width, height of the model worker
STEPS = ["schedule", "draft", "decode", "accept", "rewind", "commit"]  # of one engine step
NOTES = ["Gateways and model workers:", "as many as wanted", "Io workers: one leads,", "others take over"]
# path, has heads at both ends
ARROWS: list[tuple[str, bool]] = [
    ("M184 130H264", True),
    ("M436 130H516", True),
    ("M688 130H768", True),
    (f"M350 200V{BELOW - 4}", True),
    (f"M602 200V{BELOW - 4}", True),
    ("M516 390H436", True),
    ("M688 390H768", False),
]
# x, y, words, anchor
LABELS: list[tuple[int, int, str, str]] = [
    (224, 120, "prompts", "middle"),
    (224, 150, "answers", "middle"),
    (476, 120, "jobs", "middle"),
    (476, 150, "results", "middle"),
    (728, 120, "claims", "middle"),
    (728, 150, "results", "middle"),
    (360, 264, "uploads", "start"),
    (360, 282, "downloads", "start"),
    (612, 264, "windows of lines", "start"),
    (612, 282, "results", "start"),
    (476, 380, "files", "middle"),
    (728, 380, "events", "middle"),
]


def draw() -> str:
    body = [text(24, 40, "medusaq", 18, bold=True)]
    body += [text(24, BELOW + 30 + n * LINE, note, 12, "muted") for n, note in enumerate(NOTES)]
    for kind, x, y, width, height, title, lines in BOXES:
        body += [box(kind, x, y, width, height), text(x + 16, y + 30, title, 16, bold=True)]
        body += [text(x + 16, y + 56 + n * LINE, line, 13, "muted") for n, line in enumerate(lines)]
    body += _worker()
    body += [arrow(path, both) for path, both in ARROWS]
    body += [text(x, y, words, 12, "muted", anchor) for x, y, words, anchor in LABELS]
    return card(WIDTH, HEIGHT, TITLE, body)


def _worker() -> list[str]:
    """Its engine is one loop of six steps."""
    x, y, width, height = WORKER
    body = [box("model", x, y, width, height), text(x + 16, y + 30, "Model worker", 16, bold=True)]
    body += [text(x + 16, y + 54, "Celery, one GGUF model", 13, "muted")]
    inner = (x + 12, y + 64, width - 24, height - 76)
    body += [box("outside", *inner, 8), text(inner[0] + 12, inner[1] + 24, "Engine step", 13, bold=True)]
    for n, step in enumerate(STEPS):
        left = inner[0] + 12 + (n % 2) * 82
        top = inner[1] + 36 + (n // 2) * 32
        body += [box("model", left, top, 74, 26, 13), text(left + 37, top + 17.5, step, 12, anchor="middle")]
    foot = inner[1] + 36 + 3 * 32
    body += [text(inner[0] + 12, foot + 14, "all running requests", 12, "muted")]
    body += [text(inner[0] + 12, foot + 30, "in one llama.cpp call", 12, "muted")]
    return body


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
