"""What stands in deploy/ can be read, and names only metrics, commands and options that exist."""

import configparser
import json
import os
import re
import shutil
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError, RedisError
from typer.main import get_command

import notifier.server
from notifier.cli.app import app
from notifier.operations import problems
from notifier.queue.minutes import UNENDED
from notifier.server.pages.help import help_page, read_help
from notifier.server.pages.layout import View
from notifier.settings import redis_url
from notifier.testing.embedded import find_redis_server
from notifier.testing.ports import free_port
from tests.harness.support import eventually

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
TABLE = dict(re.findall(r"^\| `(notifier_\w+)(?:\{[^`]*\})?` \| (\w+) \|", PAGE, re.MULTILINE))
COMMANDS = get_command(app).commands
METRIC = re.compile(r"notifier_\w+")
PROBE = 'test $(($(date +%s) - $(stat -c %Y "$NOTIFIER_ALIVE_FILE"))) -lt 45'
HELP = Path(notifier.server.__file__).parent / "help"  # of the package as it is installed


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
    """Every alert has a query over known metrics, and a row in docs/reference/metrics.md that says what to do."""
    (group,) = documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"]
    for rule in group["rules"]:
        used = METRIC.findall(rule["expr"])
        assert used, rule["alert"]
        assert set(used) <= series(), rule["alert"]
        assert rule["annotations"]["summary"]
    explained = re.findall(
        r"^\| \[(Notifier\w+)\]\(\.\./\.\./notifier/server/help/([\w-]+)\.md\) \|", PAGE, re.MULTILINE
    )
    pages = [rule["annotations"]["runbook_url"].rpartition("/")[2] for rule in group["rules"]]
    assert explained == list(zip([rule["alert"] for rule in group["rules"]], pages, strict=True))


def test_the_probe_tells_a_loop_that_moves_from_one_that_hangs(tmp_path: Path) -> None:
    """By the file that the worker touches, with no Python and no Redis."""
    alive = tmp_path / "alive"
    environ = {"PATH": os.environ["PATH"], "NOTIFIER_ALIVE_FILE": str(alive)}

    def probe() -> int:
        return subprocess.run(["sh", "-c", PROBE], env=environ, stderr=subprocess.DEVNULL, check=False).returncode

    assert probe() != 0
    alive.touch()
    assert probe() == 0
    os.utime(alive, (time.time() - 60,) * 2)
    assert probe() != 0


def test_each_alert_names_its_page_of_the_runbook() -> None:
    """The page is there and names the alert; and each page that the first page leads to is there."""
    (group,) = documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"]
    for rule in group["rules"]:
        page = HELP / f"{rule['annotations']['runbook_url'].rpartition('/')[2]}.md"
        assert rule["alert"] in page.read_text(encoding="utf-8"), rule["alert"]
    source = Path(problems.__file__).read_text(encoding="utf-8")
    for page in ("suspended", "paused", "no-worker", "worker-hangs", "rates-refused", "queue-grows"):
        assert f'"{page}"' in source
        assert (HELP / f"{page}.md").is_file()
    assert (HELP / "route-stopped.md").is_file()
    assert (HELP / "route-slow.md").is_file()


def test_the_list_of_the_runbook_has_each_page() -> None:
    """Who has no alert at hand finds the page from any other page; a person does not guess its name."""
    page = help_page({"text": read_help("")}, View("/help", may_act=False))
    assert all(f'<a href="/help/{each.stem}">' in page for each in HELP.glob("*.md"))
    assert '<a href="/help">Runbook</a>' in page


def test_no_page_of_the_runbook_gives_our_url_to_another_program() -> None:
    """Those of RQ and of Redis know no redis+sentinel:// and no redis+cluster://, and a password may be in a file."""
    for page in HELP.glob("*.md"):
        assert "NOTIFIER_REDIS_URL" not in page.read_text(encoding="utf-8"), page.name


def test_the_operator_of_prometheus_reads_the_same_alerts_and_the_service() -> None:
    """Its rules are those of alerts.yaml; it scrapes the port of the Service, with the token of the Secret."""
    folder = DEPLOY / "prometheus-operator"
    listed = documents(folder / "kustomization.yaml")[0]["resources"]
    assert {"../kubernetes", *(path.name for path in folder.glob("*.yaml"))} == {*listed, "kustomization.yaml"}
    rules, alerts = documents(folder / "prometheusrule.yaml")[0], documents(DEPLOY / "prometheus" / "alerts.yaml")[0]
    assert rules["spec"] == alerts
    monitor = documents(folder / "servicemonitor.yaml")[0]["spec"]
    kinds = {each["kind"]: each for each in documents(DEPLOY / "kubernetes" / "serve.yaml")}
    assert monitor["selector"]["matchLabels"] == kinds["Service"]["metadata"]["labels"]
    (endpoint,), (port,) = monitor["endpoints"], kinds["Service"]["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    (container,) = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
    named = {each["name"]: each.get("value", "") for each in container["env"]}
    secret = endpoint["authorization"]["credentials"]
    assert named["NOTIFIER_SERVER_TOKEN_FILE"].endswith(secret["key"])
    assert kinds["Deployment"]["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"] == secret["name"]


def test_the_dashboard_names_metrics_that_exist() -> None:
    """Each query of the dashboard is over known metrics, and every panel has one."""
    dashboard = json.loads((DEPLOY / "grafana" / "push-throttle.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert METRIC.findall(target["expr"]), panel["title"]
            assert set(METRIC.findall(target["expr"])) <= series(), panel["title"]


def test_the_dashboard_draws_as_ended_only_what_has_ended() -> None:
    """Attempts that are repeated would be the highest line of an outage."""
    dashboard = json.loads((DEPLOY / "grafana" / "push-throttle.json").read_text(encoding="utf-8"))
    (panel,) = (each for each in dashboard["panels"] if each["title"].startswith("Ended"))
    assert f'{{outcome!~"{"|".join(sorted(UNENDED))}"}}' in panel["targets"][0]["expr"]


def test_kubernetes_probes_the_worker_by_its_health() -> None:
    """Workers are restarted if their loop hangs, not for a Redis that is away; what is used in them is defined."""
    listed = documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]["resources"]
    assert sorted(listed) == sorted(
        path.name for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.name != "kustomization.yaml"
    )
    worker, serve = containers()["worker"], containers()["serve"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert worker[probe]["exec"]["command"] == ["sh", "-c", PROBE]
    assert "NOTIFIER_ALIVE_FILE" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
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
    assert PROBE.replace('"', '\\"') in image
    started += json.loads(re.findall(r"^CMD (.*)$", image, re.MULTILINE)[-1])
    assert set(started) == {"worker", "serve"} <= set(COMMANDS)


@pytest.mark.parametrize("name", ["compose.yaml", "compose-cluster.yaml"])
def test_compose_can_write_its_configs(name: str) -> None:
    """It writes a config of `content` or of a variable into the container, so it starts none that is read-only."""
    (composed,) = documents(DEPLOY / name)
    given = {service: set(told) for service, told in composed["services"].items() if "configs" in told}
    assert given
    assert not [service for service, told in given.items() if "read_only" in told]


def test_the_composed_redis_wants_its_password(tmp_path: Path) -> None:
    """A real Redis with the file that Compose writes refuses who has none, and takes the URL of the workers."""
    composed = documents(DEPLOY / "compose.yaml")[0]
    places = {each["source"]: each["target"] for each in composed["services"]["redis"]["configs"]}
    file = tmp_path / "redis.conf"
    file.write_text(composed["configs"]["redis"]["content"].replace("${REDIS_PASSWORD:?set a password}", "s3cret"))
    command = composed["services"]["redis"]["command"].replace(places["redis"], str(file)).split()[1:]
    port, (program, version) = free_port(), find_redis_server()
    if version.startswith("6."):  # which knows these options by their older names
        command = [part.replace("listpack", "ziplist") for part in command]
    with (
        subprocess.Popen(
            [program, *command, "--port", str(port), "--dir", str(tmp_path)], stdout=subprocess.DEVNULL
        ) as server,
        Redis(port=port) as stranger,
    ):
        try:
            eventually(lambda: is_up(stranger), "the server")
            with pytest.raises(AuthenticationError):
                stranger.ping()
            url: str = composed["services"]["worker"]["environment"]["NOTIFIER_REDIS_URL"]
            url = url.replace("${REDIS_PASSWORD:?set a password}", "s3cret").replace("redis:6379", f"127.0.0.1:{port}")
            with Redis.from_url(url) as known:
                assert known.ping()
        finally:
            server.terminate()


def is_up(redis: Redis) -> bool:
    """Whether it answers, be it by a refusal."""
    try:
        redis.ping()
    except AuthenticationError:
        return True
    except RedisError:
        return False
    return True


def test_redis_keeps_what_it_is_given() -> None:
    """The composed Redis persists, and evicts nothing; the server listens to others with a token alone."""
    services = documents(DEPLOY / "compose.yaml")[0]["services"]
    assert "--appendonly yes" in services["redis"]["command"]
    assert "--maxmemory-policy noeviction" in services["redis"]["command"]
    assert services["serve"]["environment"]["NOTIFIER_SERVER_TOKEN"].startswith("${NOTIFIER_SERVER_TOKEN:?")
    assert services["worker"]["deploy"]["replicas"] == 2
    (scrape,) = documents(DEPLOY / "prometheus" / "prometheus.yaml")[0]["scrape_configs"]
    assert scrape["authorization"]["credentials_file"]


@pytest.mark.parametrize("name", ["compose.yaml", "compose-cluster.yaml"])
def test_who_waits_for_a_composed_redis_waits_while_it_loads(name: str) -> None:
    """A gigabyte of its log takes minutes to load. Without a start period Compose gives it up, and all that need it."""
    composed = documents(DEPLOY / name)[0]
    checks = [told["healthcheck"] for told in composed["services"].values() if "healthcheck" in told]
    of_redis = [check for check in checks if "redis-cli" in check["test"]]
    assert of_redis
    assert {check.get("start_period") for check in of_redis} == {"10m"}


def test_the_nodes_of_a_cluster_keep_what_they_are_given() -> None:
    """Each persists, evicts nothing, serves what it has without the others, and is known by a name that lasts."""
    nodes = documents(DEPLOY / "compose-cluster.yaml")[0]["services"]
    started = {name: nodes[name]["command"] for name in ("redis", "redis-2", "redis-3")}
    pods = {each["kind"]: each for each in documents(DEPLOY / "redis-cluster" / "redis.yaml")}
    (pod,) = pods["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    for name, command in {**started, "$(POD_NAME).redis": " ".join(pod["args"])}.items():
        assert f"--cluster-announce-hostname {name}" in command
        for option in ("appendonly yes", "maxmemory-policy noeviction", "cluster-require-full-coverage no"):
            assert f"--{option}" in command
    url = nodes["worker"]["environment"]["NOTIFIER_REDIS_URL"].replace("${REDIS_PASSWORD:?set a password}", "secret")
    assert redis_url.parse(url).password == "secret"
    assert all("/etc/redis.conf" in command for command in started.values())
    assert sorted(node for node, _ in redis_url.parse(url).hosts) == sorted(started)


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
    heading = "[Unreleased]" if "dev" in version else f"[{version}] - "
    assert f"\n## {heading}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
