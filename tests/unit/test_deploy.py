"""What stands in deploy/ can be read, and names only metrics, commands and options that exist."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from notifier.cli.app import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "how-to" / "operate.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
TABLE = dict(re.findall(r"^\| `(notifier_\w+)(?:\{[^`]*\})?` \| (\w+) \|", METRICS, re.MULTILINE))
COMMANDS = get_command(app).commands
METRIC = re.compile(r"notifier_\w+")
PROBE = "notifier health || [ $? -eq 4 ]"


def series() -> set[str]:
    """The names that a query may use, by docs/reference/metrics.md, which a test holds equal to /metrics."""
    parts = ("_bucket", "_count", "_sum")
    return set(TABLE) | {name + part for name, kind in TABLE.items() if kind == "histogram" for part in parts}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def containers() -> dict[str, dict[str, Any]]:
    found = [each for name in ("worker", "serve") for each in documents(DEPLOY / "kubernetes" / f"{name}.yaml")]
    specs = [each["spec"]["template"]["spec"] for each in found if each["kind"] == "Deployment"]
    return {container["name"]: container for spec in specs for container in spec["containers"]}


def test_alerts_name_metrics_that_exist_and_each_is_explained() -> None:
    """Every alert has a query over known metrics, and a row in docs/how-to/operate.md that says what to do."""
    (group,) = documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"]
    for rule in group["rules"]:
        used = METRIC.findall(rule["expr"])
        assert used, rule["alert"]
        assert set(used) <= series(), rule["alert"]
        assert rule["annotations"]["summary"]
    explained = re.findall(r"^\| (Notifier\w+) \|", PAGE, re.MULTILINE)
    assert explained == [rule["alert"] for rule in group["rules"]]


def test_the_dashboard_names_metrics_that_exist() -> None:
    """Each query of the dashboard is over known metrics, and every panel has one."""
    dashboard = json.loads((DEPLOY / "grafana" / "push-throttle.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert METRIC.findall(target["expr"]), panel["title"]
            assert set(METRIC.findall(target["expr"])) <= series(), panel["title"]


def test_kubernetes_probes_the_worker_by_its_health() -> None:
    """Workers are restarted by `notifier health`, not for a Redis that is away; what is used in them is defined."""
    listed = documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]["resources"]
    assert sorted(listed) == sorted(
        path.name for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.name != "kustomization.yaml"
    )
    worker, serve = containers()["worker"], containers()["serve"]
    for probe in ("startupProbe", "livenessProbe"):
        assert worker[probe]["exec"]["command"] == ["sh", "-c", PROBE]
    assert worker["readinessProbe"]["exec"]["command"] == ["notifier", "health"]
    assert serve["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert serve["readinessProbe"]["httpGet"]["path"] == "/readyz"
    kinds = {each["kind"]: each for each in documents(DEPLOY / "kubernetes" / "worker.yaml")}
    budget, labels = kinds["PodDisruptionBudget"]["spec"], kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["minAvailable"] < kinds["Deployment"]["spec"]["replicas"]


def test_what_is_started_is_a_command() -> None:
    """Each container, service and unit starts a command of ours that exists."""
    composed = documents(DEPLOY / "compose.yaml")[0]["services"]
    started = [container["args"][0] for container in containers().values()] + [composed["serve"]["command"][0]]
    for path in (DEPLOY / "systemd").glob("*.service"):
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str
        unit.read_string(path.read_text(encoding="utf-8"))
        started.append(unit["Service"]["ExecStart"].split()[1])
        assert unit["Install"]["WantedBy"]
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert "USER 10001" in image
    assert "STOPSIGNAL SIGTERM" in image
    assert PROBE in image
    started += json.loads(re.findall(r"^CMD (.*)$", image, re.MULTILINE)[-1])
    assert set(started) == {"worker", "serve"} <= set(COMMANDS)


def test_redis_keeps_what_it_is_given() -> None:
    """The composed Redis persists, and evicts nothing; the server listens to others with a token alone."""
    services = documents(DEPLOY / "compose.yaml")[0]["services"]
    assert "--appendonly yes" in services["redis"]["command"]
    assert "--maxmemory-policy noeviction" in services["redis"]["command"]
    assert services["serve"]["environment"]["NOTIFIER_SERVER_TOKEN"].startswith("${NOTIFIER_SERVER_TOKEN:?")
    assert services["worker"]["deploy"]["replicas"] == 2
    (scrape,) = documents(DEPLOY / "prometheus" / "prometheus.yaml")[0]["scrape_configs"]
    assert scrape["authorization"]["credentials_file"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_alerts_fire_when_they_should() -> None:
    """Promtool takes the rules, and each alert of its tests fires where it should and nowhere else."""
    done = subprocess.run(["make", "check-alerts"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workers_are_scaled_by_what_is_due() -> None:
    """KEDA counts what is due and what nobody has looked at, never what the limits hold back."""
    overlay = documents(DEPLOY / "keda" / "kustomization.yaml")[0]
    assert overlay["resources"] == ["../kubernetes", "scaledobject.yaml"]
    scaled = documents(DEPLOY / "keda" / "scaledobject.yaml")[0]["spec"]
    used = {name for trigger in scaled["triggers"] for name in METRIC.findall(trigger["metadata"]["query"])}
    assert used == {"notifier_oldest_due_seconds", "notifier_queued", "notifier_due_users"}
    assert used <= series()
    deployment = documents(DEPLOY / "kubernetes" / "worker.yaml")[0]
    assert scaled["scaleTargetRef"] == {"name": deployment["metadata"]["name"]} == {"name": "notifier-worker"}
    assert overlay["patches"][0]["target"] == {"kind": "Deployment", "name": "notifier-worker"}
    assert scaled["minReplicaCount"] == deployment["spec"]["replicas"]


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.yaml")), ids=lambda path: path.name)
def test_each_file_is_yaml(path: Path) -> None:
    """What claims to be YAML is."""
    assert all(isinstance(each, dict) for each in documents(path))


def test_the_version_is_said_once() -> None:
    """Kubernetes starts the version that pyproject.toml names, and the changelog knows it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    (image,) = yaml.safe_load((ROOT / "deploy/kubernetes/kustomization.yaml").read_text(encoding="utf-8"))["images"]
    assert image["newTag"] == version
    assert f"\n## [{version}] - " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
