"""The dashboard and the alerts query existing metrics, in valid PromQL."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import promql_parser
import pytest
import yaml
from serving import bind_floats, samples_of, scrape, send_floats, wait_until
from streaming import bind_stream, responses

from pytriton.decorators import batch
from pytriton.process import ProcessInstance

ROOT = pathlib.Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGES = [ROOT / "docs" / page for page in ("metrics.md", "performance.md")]
DASHBOARD = json.loads((DEPLOY / "grafana" / "pytriton.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
OF_PROMETHEUS = {"up"}
OF_PROMETHEUS_LABELS = {"instance", "job"}


def queries():
    """All queries, with Grafana's variables replaced."""
    found = {f"alert {rule['alert']}": rule["expr"] for rule in RULES}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m")
            found[f"panel {panel['title']} {target['refId']}"] = re.sub(r"\$\w+", ".*", query)
    return found


def queries_of_the_pages():
    """The queries in blocks of text of the documentation."""
    found = {}
    for page in PAGES:
        blocks = re.findall(r"^( *)```text\n(.*?)^\1```", page.read_text(), re.MULTILINE | re.DOTALL)
        queries = [text for _, text in blocks if re.match(r" *(sum|histogram_quantile)\b", text)]
        found |= {f"{page.name}, query {number}": query for number, query in enumerate(queries, 1)}
    return found


def selectors_in(expression):
    """The selectors of a parsed query: the name, and the labels that it matches."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression.name, {matcher.name for matcher in expression.matchers.matchers}
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        inner = getattr(expression, name, None)
        if isinstance(inner, promql_parser.Expr):
            yield from selectors_in(inner)
    for argument in getattr(expression, "args", None) or ():
        yield from selectors_in(argument)


@pytest.fixture(scope="module")
def labels_by_metric(triton):
    """What a server shows that has served each kind of model: the names of labels of each metric."""

    async def stream(requests):
        yield responses(requests, 1)

    def fail(requests):
        raise ValueError("no")

    def make_double():
        return batch(lambda x: [x * 2])

    bind_floats(triton, "Fails", fail)
    bind_floats(triton, "InProcess", ProcessInstance(make_double))
    bind_stream(triton, "Streams", stream)
    send_floats(triton, "Fails", [1])
    wait_until(lambda: samples_of(triton, "pytriton_streams_open", model="Streams"))
    wait_until(lambda: samples_of(triton, "pytriton_callable_errors_total", model="Fails"))
    labels = {}
    for name, text in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", scrape(triton), re.MULTILINE):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', text))
    return labels


def test_each_query_parses_and_uses_existing_metrics(labels_by_metric):
    assert len(queries()) > 30
    assert len(queries_of_the_pages()) == 3
    for where, query in (queries() | queries_of_the_pages()).items():
        selectors = list(selectors_in(promql_parser.parse(query)))
        assert selectors, where
        for name, labels in selectors:
            if name in OF_PROMETHEUS:
                continue
            assert name in labels_by_metric, f"{where}: no server has {name}"
            assert labels <= labels_by_metric[name] | OF_PROMETHEUS_LABELS, f"{where}: {name}"


def test_each_built_in_metric_is_on_the_dashboard_or_in_an_alert(labels_by_metric):
    shown = {name for query in queries().values() for name, _ in selectors_in(promql_parser.parse(query))}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in labels_by_metric if name.startswith("pytriton_")}
    assert families == {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown if name.startswith("pytriton_")}


def test_each_alert_names_a_remedy():
    for rule in RULES:
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["action"].endswith("."), rule["alert"]


def test_the_page_lists_each_alert_with_its_severity():
    listed = re.findall(r"^\| `(PyTriton\w+)` \| (\w+) \|", (ROOT / "docs" / "deploy.md").read_text(), re.MULTILINE)
    assert dict(listed) == {rule["alert"]: rule["labels"]["severity"] for rule in RULES}


def test_panels_do_not_overlap_and_have_unique_ids():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    grid = np.zeros((200, 24), int)
    for panel in panels:
        at = panel["gridPos"]
        grid[at["y"] : at["y"] + at["h"], at["x"] : at["x"] + at["w"]] += 1
    assert grid.max() == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("arguments", [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]])
def test_promtool_accepts_the_alerts(arguments):
    done = subprocess.run(
        ["promtool", *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_in_some_test():
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in RULES}
