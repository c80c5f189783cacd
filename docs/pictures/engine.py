"""The pictures of the engine's layouts and of one step, by `python -m docs.pictures.engine`."""

from __future__ import annotations

from pathlib import Path

from docs.pictures.svg import arrow, box, card, text

FOLDER = Path(__file__).parent
LAYOUTS, STEP = FOLDER / "layouts.svg", FOLDER / "step.svg"

WIDTH = 900
KINDS = ("model", "gateway", "io", "files", "redis", "outside")  # colours of requests
CELL = 14
LANES = [17, 12, 20, 9, 14]  # tokens of the request in each lane
SHARED = [0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0]  # the request that each cell belongs to
LAYOUTS_TITLE = (
    "Left: five requests in lanes. Each row of a decode call visits the cells of its own lane. "
    "Right: two requests in one shared cache, with a token tree. Each row visits the cells of both."
)
STEP_TITLE = (
    "One step. Parts of prompts are computed in calls of their own. Then one call has as many rows of each "
    "lane: the last token, and its draft or filling. Then tokens are sampled, and rejected rows are dropped."
)


def layouts() -> str:
    body = [
        text(24, 36, "Lanes: many requests", 16, bold=True),
        text(24, 58, "a stream of llama.cpp for each request", 13, "muted"),
    ]
    for lane, tokens in enumerate(LANES):
        y = 80 + lane * 30
        body += [text(24, y + 12, f"lane {lane}", 12, "muted"), box("outside", 76, y - 2, 26 * CELL, 20, 5)]
        body += [box(KINDS[lane], 78 + i * CELL, y + 1, CELL - 2, 14, 3) for i in range(tokens)]
        body += [arrow(f"M{104 + 26 * CELL - 8} {y + 8}H{80 + tokens * CELL}")]
    body += [
        text(24, 252, "A row visits its own lane. All lanes get equally", 13),
        text(24, 270, "many rows, of consecutive lanes: one pass over", 13),
        text(24, 288, "the weights. Drafts are chains.", 13),
    ]
    x = 500
    body += [
        text(x, 36, "Shared cache: few requests, or long ones", 16, bold=True),
        text(x, 58, "one unified cache", 13, "muted"),
        box("outside", x, 78, 26 * CELL, 20, 5),
    ]
    body += [box(KINDS[owner], x + 2 + i * CELL, 81, CELL - 2, 14, 3) for i, owner in enumerate(SHARED)]
    body += [arrow(f"M{x + 26 * CELL + 14} 88H{x + 4 + len(SHARED) * CELL}")]
    body += _tree(x + 40, 130)
    body += [
        text(x, 252, "A row visits the cells of all. Each request gets", 13),
        text(x, 270, "the rows that pay: drafts are token trees, whose", 13),
        text(x, 288, "branches share the cells above them.", 13),
    ]
    body += [
        arrow("M486 170H466", both=False),
        arrow("M466 190H486", both=False),
    ]
    return card(WIDTH, 312, LAYOUTS_TITLE, body)


def _tree(x: int, y: int) -> list[str]:
    """A last token, two candidates below it, and two below the first of them."""
    nodes = [(0, 40), (90, 15), (90, 65), (180, 0), (180, 35)]
    edges = [(0, 1), (0, 2), (1, 3), (1, 4)]
    body = [
        arrow(f"M{x + nodes[a][0] + 60} {y + nodes[a][1] + 12}L{x + nodes[b][0] - 2} {y + nodes[b][1] + 12}")
        for a, b in edges
    ]
    for i, (left, top) in enumerate(nodes):
        words = "last" if i == 0 else "draft"
        body += [box("model", x + left, y + top, 60, 24, 12)]
        body += [text(x + left + 30, y + top + 16, words, 12, anchor="middle")]
    return body


PHASES = [
    ("schedule", ["admit, move,", "close gaps"]),
    ("draft", ["what pays, as wide", "in each lane"]),
    ("decode", ["prompt parts, then", "one call for all"]),
    ("accept", ["sample; keep draft", "tokens that match"]),
    ("rewind", ["drop the cells of", "the others"]),
    ("commit", ["emit tokens, end", "requests"]),
]
ROWS = [
    ("last", "draft", "draft"),
    ("last", "draft", "filling"),
    ("last", "filling", "filling"),
    ("next", "filling", "filling"),
]


def step() -> str:
    body = []
    for i, (name, lines) in enumerate(PHASES):
        x = 24 + i * 145
        body += [box("model", x, 24, 126, 76), text(x + 12, 48, name, 15, bold=True)]
        body += [text(x + 12, 68 + n * 17, line, 11.5, "muted") for n, line in enumerate(lines)]
        if i:
            body += [arrow(f"M{x - 17} 62H{x - 3}")]
    body += [
        text(24, 140, "decode: first calls for parts of prompts", 14, bold=True),
        box("io", 24, 154, 380, 28, 6),
        text(36, 173, "up to 256 tokens of one prompt, in its lane", 12.5),
        box("io", 24, 190, 380, 28, 6),
        text(36, 209, "short parts of several prompts, in one call", 12.5),
        text(470, 140, "then one call for all lanes", 14, bold=True),
    ]
    for lane, row in enumerate(ROWS):
        y = 154 + lane * 30
        body += [text(470, y + 17, f"lane {lane}", 12, "muted")]
        for n, words in enumerate(row):
            kind = {"last": "model", "draft": "gateway", "filling": "outside", "next": "io"}[words]
            body += [box(kind, 524 + n * 86, y, 80, 24, 12)]
            body += [text(564 + n * 86, y + 16, words, 12, anchor="middle")]
    body += [
        text(24, 246, "A lane with a prompt has rows in the call on the", 12.5, "muted"),
        text(24, 264, "right, too: its lanes must be consecutive.", 12.5, "muted"),
    ]
    return card(WIDTH, 290, STEP_TITLE, body)


if __name__ == "__main__":
    LAYOUTS.write_text(layouts(), encoding="utf-8")
    STEP.write_text(step(), encoding="utf-8")
