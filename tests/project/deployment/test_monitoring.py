"""The dashboard and the alerts against what a running stack shows, and against the runbook."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.helpers.running import Cli
from tests.support.workers import wait_until

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "medusaq.json").read_text(encoding="utf-8"))
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
RUNBOOK = (ROOT / "docs" / "how-to" / "runbook.md").read_text(encoding="utf-8")
SELECTED = re.compile(r"\b(medusaq_\w+)(?:\{([^}]*)\})?")
ONCE = re.compile(r"\bmax(?: by \(([^)]*)\))?\s*\((?:(?:rate|increase)\()?(medusaq_\w+)")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
TOKEN = re.compile(r'"[^"]*"|\w+(?:\.\d+)?|=~|!~|[=!<>]=|[-+*/%=<>(){}\[\],]')
AGGREGATIONS = {"sum", "max", "min"}
OF_RANGES = {"rate", "increase"}
FUNCTIONS = {"histogram_quantile", *AGGREGATIONS, *OF_RANGES}  # that are used here; a new one is added
CALLED = re.compile(r"\b(?!(?:by|on)\b)(\w+)\s*\(")
RANGED = re.compile(r"(?:(\w+)\()?(\w+)(?:\{[^}]*\})?\[([^\]]*)\]")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]] + [r["expr"] for r in ALERTS]


@pytest.fixture
def cli(tmp_path: Path) -> Any:
    runner = Cli(tmp_path)
    runner.env["MEDUSAQ_ENGINE_FACTORY"] = "engine:load"
    yield runner
    runner.close()


@pytest.mark.stack
def test_every_metric_and_label_value_is_one_that_a_running_stack_shows(cli: Cli) -> None:
    up = cli.start("up", "--port", "0", "--no-flower")
    url = up.wait_for("  gateway  ", 120).split()[-1]
    job = {"prompt": "Count to twenty.", "max_tokens": 24, "decoding": "medusa"}
    assert httpx.post(f"{url}/v1/jobs", json=job, headers={"Prefer": "wait=60"}, timeout=90).json()["result"]
    names: dict[str, list[dict[str, str]]] = {}

    def missing() -> list[str]:
        names.clear()
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
            for sample in family.samples:
                names.setdefault(sample.name, []).append(sample.labels)
        return [
            f"{name}{{{selector}}}"
            for expr in expressions()
            for name, selector in SELECTED.findall(expr)
            if not any(_selects(selector, labels) for labels in names.get(name, []))
        ]

    wait_until(lambda: not missing(), report=lambda: str(missing()))
    assert up.process.poll() is None
    for expr in expressions():
        for kept, name in ONCE.findall(expr):
            labels = {label for each in names[name] for label in each}
            assert set(kept.split(", ") if kept else ()) == labels, f"{name} loses labels: {expr}"
    documented = {name for name in names if not name.endswith(("_bucket", "_sum", "_count"))}
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    unnamed = {name for name in documented if f"`{name}`" not in text}
    assert not unnamed, "each metric is in docs/reference/metrics.md"


def _selects(selector: str, labels: dict[str, str]) -> bool:
    """Status classes aside: nothing need have failed."""
    for label, operator, wanted in MATCHER.findall(selector):
        if label == "status" and wanted.startswith("5"):
            wanted, operator = r"\d+", "=~"
        has = labels.get(label, "")
        alike = re.fullmatch(wanted, has) is not None if "~" in operator else has == wanted
        if alike == operator.startswith("!"):
            return False
    return True


@pytest.mark.parametrize(
    ("selector", "selected", "left"),
    [
        ('worker=""', {}, {"worker": "a"}),
        ('worker!=""', {"worker": "a"}, {}),
        ('worker=~"a|b"', {"worker": "b"}, {"worker": "ab"}),
        ('worker!~"a|b"', {"worker": "ab"}, {"worker": "b"}),
        ('worker!="", le="1"', {"worker": "a", "le": "1"}, {"worker": "a", "le": "2"}),
    ],
)
def test_a_selector_selects_as_prometheus_does(
    selector: str, selected: dict[str, str], left: dict[str, str]
) -> None:
    assert _selects(selector, selected)
    assert not _selects(selector, left)


def test_expressions_are_whole() -> None:
    for expr in expressions():
        assert not TOKEN.sub("", expr).split(), f"what is that: {expr}"
        brackets = re.sub(r'"[^"]*"|[^(){}\[\]]', "", expr)
        while brackets != (inner := re.sub(r"\(\)|\{\}|\[\]", "", brackets)):
            brackets = inner
        assert not brackets, expr
        assert SELECTED.search(expr) or "up{" in expr


def test_selectors_are_whole_and_their_patterns_patterns() -> None:
    for expr in expressions():
        for selector in re.findall(r"\{([^}]*)\}", expr):
            assert not MATCHER.sub("", selector).strip(", "), expr
            for _, operator, wanted in MATCHER.findall(selector):
                assert "~" not in operator or re.compile(wanted)


def test_functions_exist_and_get_what_they_take() -> None:
    """Rates are of counters over a time, quantiles of buckets by le; nothing else has a time."""
    for expr in expressions():
        called = CALLED.findall(expr)
        assert set(called) <= FUNCTIONS, expr
        ranged = RANGED.findall(expr)
        assert len(ranged) == sum(name in OF_RANGES for name in called), expr
        for function, metric, time in ranged:
            assert function in OF_RANGES, expr
            assert metric.endswith(("_total", "_bucket", "_sum", "_count")), expr
            assert re.fullmatch(r"[1-9]\d*[smhd]", time), expr
        for grouped in re.findall(r"(\w+) by\b", expr):
            assert grouped in AGGREGATIONS, expr
        for quantile, kept in re.findall(r"histogram_quantile\(([^,]*), \w+ by \(([^)]*)\)", expr):
            assert 0 < float(quantile) < 1, expr
            assert "le" in kept.split(", "), expr
        assert expr.count("histogram_quantile(") == len(
            re.findall(r"histogram_quantile\([^,]*, \w+ by \(", expr)
        )


def test_whatever_tells_gateways_apart_counts_no_worker_twice() -> None:
    """On Kubernetes the pod does, besides the instance: what is kept is named, not what is left out."""
    assert not [expr for expr in expressions() if "without" in expr]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_the_value_of_an_alert_is_what_was_compared(rule: dict[str, Any]) -> None:
    """Of `a and b` it would be that of a, whatever b compares."""
    assert not re.search(r"\b(and|unless)\b", rule["expr"])


def test_gateways_are_told_apart_where_they_show_themselves() -> None:
    """Their own figures have no worker, which those of workers have."""
    for expr in expressions():
        for name, selector in SELECTED.findall(expr):
            if name.startswith(("medusaq_redis_seconds", "medusaq_redis_failures")):
                assert selector in ('worker!=""', 'worker=""'), expr
                assert selector != 'worker=""' or "by (instance" in expr


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_is_wrong_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert (ROOT / page).is_file()
    assert anchor == rule["alert"].lower()
    section = re.search(rf"^## {rule['alert']}\n(.*?)(?=^## |\Z)", RUNBOOK, re.DOTALL | re.MULTILINE)
    assert section is not None
    for part in ("**Means.**", "**See.**", "**Mend.**"):
        assert part in section[1]


def test_every_runbook_section_is_of_an_alert() -> None:
    assert re.findall(r"^## (Medusaq\w+)$", RUNBOOK, re.MULTILINE) == [rule["alert"] for rule in ALERTS]


def test_the_dashboard_loads_anywhere() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    [variable] = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"]) == ("datasource", "datasource")
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_prometheus_asks_the_gateway_under_the_name_that_the_alerts_know() -> None:
    [scrape] = PROMETHEUS["scrape_configs"]
    assert f'up{{job="{scrape["job_name"]}"}}' in ALERTS[0]["expr"]
    [rules] = PROMETHEUS["rule_files"]
    assert (DEPLOY / "prometheus" / rules).is_file()
