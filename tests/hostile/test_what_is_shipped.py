"""What leaves this folder holds no key, and what runs from it has few rights."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KEYS = ("AuthKey_ABCDEFGHIJ.p8", "service-account.json", "service_account.json", "certificate.p12", "key.pem", ".env")
FOLDERS = ("config", "notifier", "workers", "deploy", "docs", "tests")


def documents(path: str) -> list[Any]:
    return list(yaml.safe_load_all((ROOT / path).read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_no_key_gets_into_a_distribution(tmp_path: Path, kind: str) -> None:
    """Keys that lie beside the configuration, or anywhere in the tree, stay there."""
    tree = tmp_path / "tree"
    listed = ["notifier", "workers", "config", "deploy", "examples", "README.md", "LICENSE", "pyproject.toml"]
    for name in listed:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        tree.mkdir(exist_ok=True)
        copy(ROOT / name, tree / name)
    for folder in FOLDERS:
        (tree / folder).mkdir(exist_ok=True)
        for name in KEYS:
            (tree / folder / name).write_text("a key", encoding="utf-8")
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(tmp_path / "dist")]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (made,) = (tmp_path / "dist").iterdir()
    if kind == "sdist":
        with tarfile.open(made) as archive:
            names = archive.getnames()
    else:
        with zipfile.ZipFile(made) as archive:
            names = archive.namelist()
    assert any(name.endswith("workers/push.py") for name in names)
    assert [name for name in names if Path(name).name in KEYS] == []


def test_the_image_is_built_from_named_files() -> None:
    """All is left out but what is named; git does not take keys either."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert "!config" not in rules
    for name in KEYS:
        done = subprocess.run(["git", "check-ignore", "-q", f"config/{name}"], cwd=ROOT, check=False)
        assert done.returncode == 0, name


def test_what_is_installed_has_the_hashes_of_a_lock() -> None:
    """Each requirement of each lock has hashes, and the image takes nothing that has not."""
    locks = sorted(ROOT.glob("requirements*.lock"))
    assert ROOT / "requirements-image.lock" in locks
    for lock in locks:
        pinned = re.findall(r"^[a-z0-9].*", lock.read_text(encoding="utf-8"), re.MULTILINE)
        assert pinned
        assert [line for line in pinned if "==" not in line or not line.endswith("\\")] == [], lock.name
        assert lock.read_text(encoding="utf-8").count("--hash=sha256:") >= len(pinned), lock.name
    assert "--require-hashes --requirement" in (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")


def test_a_container_has_few_rights() -> None:
    """No new privileges, a root that cannot be written, no capability, and no token of the cluster."""
    services = documents("deploy/compose.yaml")[0]["services"]
    assert all(service["security_opt"] == ["no-new-privileges:true"] for service in services.values())
    for name in ("worker", "serve"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
        pod = documents(f"deploy/kubernetes/{name}.yaml")[0]["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_network_is_bounded() -> None:
    """Nobody reaches a worker; a server is reached at its port alone; both reach named ports alone."""
    policies = {each["metadata"]["name"]: each["spec"] for each in documents("deploy/kubernetes/network.yaml")}
    assert "network.yaml" in documents("deploy/kubernetes/kustomization.yaml")[0]["resources"]
    assert all(policy["policyTypes"] == ["Ingress", "Egress"] for policy in policies.values())
    assert "ingress" not in policies["notifier-worker"]
    assert policies["notifier-serve"]["ingress"] == [{"ports": [{"port": 8787}]}]
    for policy in policies.values():
        assert all("port" in port for rule in policy["egress"] for port in rule["ports"])


def test_the_threat_model_names_tests_that_there_are() -> None:
    """SECURITY.md promises nothing that has no test."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert table
    for row in table:
        named = re.findall(r"`([a-z0-9_/]+/test_[a-z0-9_]+\.py)(?:::(test_\w+))?`", row)
        assert named or row.startswith(("| promise", "| who")), row
        for file, test in named:
            assert f"def {test}" in (ROOT / "tests" / file).read_text(encoding="utf-8"), (file, test)


def test_nothing_skips_the_verification_of_a_server() -> None:
    """No option is about it, and nothing in the code leaves it out."""
    schema = (ROOT / "config/notifier.schema.json").read_text(encoding="utf-8")
    assert re.findall(r'"\w*(?:insecure|verify|skip|hostname)\w*":', schema) == []
    sources = [path for room in ("notifier", "workers", "platforms") for path in (ROOT / room).rglob("*.py")]
    found = [path for path in sources if re.search(r"CERT_NONE|check_hostname\s*=\s*False|ssl=False", path.read_text())]
    assert [path for path in found if "simulators" not in path.parts] == []
