"""Where the demo finds its notifications and its rates."""

from pathlib import Path

import pytest

from workers.demo import options


def test_the_demo_plays_the_examples_of_the_folder_or_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone one changes examples/demo.yaml; elsewhere the package has the files itself, see pyproject.toml."""
    monkeypatch.chdir(tmp_path)
    own = Path(options.__file__).parent
    assert options.example("demo.yaml").parent == own
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "demo.yaml").write_text("{}")
    assert options.example("demo.yaml") == Path("examples/demo.yaml")
