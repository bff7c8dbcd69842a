"""The example of a platform of somebody's own, as its author would have it: installed, and held to the contract."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ntfy_platform"


def test_the_example_keeps_the_contract(tmp_path: Path) -> None:
    """All tests of the suite pass over a package that is found by its entry point alone."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "ntfy_platform-0.1.0.dist-info"  # what pip would write, without the network
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    entries = project["entry-points"]["notifier.providers"]
    (info / "entry_points.txt").write_text(
        "[notifier.providers]\n" + "".join(f"{name} = {where}\n" for name, where in entries.items())
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "test_ntfy.py")]
    path = os.pathsep.join([str(EXAMPLE), str(tmp_path)])
    ran = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
