"""The reference of the settings, made from their own descriptions.

python -m tests.project.settings_page [--write docs/reference/settings.md]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from tasks.base.setting_names import ENV_PREFIX
from tasks.base.settings import Settings
from tests.support.workers import ROOT

PAGE = ROOT / "docs" / "reference" / "settings.md"
HEAD = """# Settings

<!-- by python -m tests.project.settings_page --write docs/reference/settings.md -->

Every process reads its settings from environment variables, or from a file `.env` in the folder where it
starts; the environment comes first. Lists are JSON; an empty value is none. A bad value, or a name that is
not a setting any more, ends the process with one line that says so; an unknown name is reported in one line
at the start. `medusaq doctor` finds both, and values in `.env` that the environment hides.
"""
FOOT = """## Variables that are no settings

| name | effect |
| --- | --- |
| `MEDUSAQ_URL` | Gateway that `medusaq` commands ask; `--url` does the same. |
| `MEDUSAQ_CONVERTER` | A checkout of llama.cpp whose converter reads [checkpoints](checkpoints.md). |

S3, OpenTelemetry and Flower have variables of their own: `AWS_*`, `OTEL_*`
([observability](../how-to/observability.md)) and `FLOWER_*`.
"""
# Each group begins with this field and ends before the next one's.
GROUPS = {
    "redis_url": "Store",
    "host": "Addresses and access",
    "model": "Model and engine",
    "lease_ms": "Jobs",
    "max_body_bytes": "Limits",
    "webhook_secrets": "Webhooks",
    "log_level": "Logs",
}


def page() -> str:
    groups: list[tuple[str, list[tuple[str, ...]]]] = []
    for name, field in Settings.model_fields.items():
        if name in GROUPS:
            groups.append((GROUPS[name], []))
        groups[-1][1].append((f"`{ENV_PREFIX}{name.upper()}`", _default(field), field.description or ""))
    return "\n".join([HEAD, *(f"## {title}\n\n{_table(rows)}" for title, rows in groups), FOOT])


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = (("name", "default", "effect"), ("---",) * 3, *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _default(field: FieldInfo) -> str:
    value = field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value() or None
    if value is None:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE")
    to = parser.parse_args().write
    if to is None:
        print(page(), end="")
    else:
        to.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
