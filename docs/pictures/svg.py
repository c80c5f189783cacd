"""The parts that the pictures share: a card with colours for light and dark pages, boxes, text, arrows.

A picture in an <img> follows the reader's light or dark setting, not the page's. The card is opaque, so
that its text has contrast on any page.
"""

from __future__ import annotations

from html import escape

FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"
# kind -> (fill, stroke) on light and on dark cards
KINDS = {
    "outside": (("#f6f8fa", "#afb8c1"), ("#21262d", "#6e7681")),
    "gateway": (("#ddf4ff", "#54aeff"), ("#0c2d4d", "#388bfd")),
    "redis": (("#ffebe9", "#ff8182"), ("#4b1113", "#f85149")),
    "model": (("#fbefff", "#c297ff"), ("#2e1a47", "#a371f7")),
    "io": (("#dafbe1", "#4ac26b"), ("#0f3320", "#3fb950")),
    "files": (("#fff8c5", "#d4a72c"), ("#3b2a05", "#d29922")),
}
# class -> colour on light and on dark cards
INKS = {"ink": ("#1f2328", "#e6edf3"), "muted": ("#57606a", "#9ea7b3"), "line": ("#6e7781", "#8b949e")}
CARD = (("#ffffff", "#d0d7de"), ("#0d1117", "#30363d"))


def card(width: int, height: int, title: str, body: list[str]) -> str:
    """The whole file. title: what screen readers say of it."""
    light, dark = (_rules(side) for side in (0, 1))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}" '
            f'font-family="{FONT}">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto-start-reverse">'
            '<path class="line-fill" d="M0 0L10 5L0 10z"/></marker></defs>',
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="12"/>',
            *body,
            "</svg>\n",
        ]
    )


def _rules(side: int) -> str:
    fill, stroke = CARD[side]
    rules = [f".card {{ fill: {fill}; stroke: {stroke}; }}"]
    for kind, colours in KINDS.items():
        fill, stroke = colours[side]
        rules += [f".{kind} {{ fill: {fill}; stroke: {stroke}; stroke-width: 1.5; }}"]
        rules += [f".{kind}-solid {{ fill: {stroke}; }}"]
        rules += [f".{kind}-line {{ stroke: {stroke}; stroke-width: 2.4; fill: none; }}"]
    rules += [f".{name} {{ fill: {colours[side]}; }}" for name, colours in INKS.items() if name != "line"]
    line = INKS["line"][side]
    rules += [f".line {{ stroke: {line}; stroke-width: 1.6; fill: none; }}"]
    rules += [f".line-fill {{ fill: {line}; }}"]
    return "\n".join(rules)


def box(kind: str, x: float, y: float, width: float, height: float, radius: float = 10) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"/>'


def text(
    x: float,
    y: float,
    words: str,
    size: float = 13,
    ink: str = "ink",
    anchor: str = "start",
    bold: bool = False,
) -> str:
    """y: of the baseline."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text class="{ink}" x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}"{weight}>'
        f"{escape(words)}</text>"
    )


def arrow(path: str, both: bool = False) -> str:
    """Along a path, with a head at its end, or at both ends."""
    start = ' marker-start="url(#head)"' if both else ""
    return f'<path class="line" d="{path}" marker-end="url(#head)"{start}/>'
