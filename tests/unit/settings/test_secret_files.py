"""Files with secrets: when a change counts, and what is not read at all."""

import os
from pathlib import Path

import pytest

from notifier.errors import SettingsError
from notifier.settings import parse_settings
from notifier.settings.secret_files import SecretFiles, read_regular


def looks(files: SecretFiles, count: int = 2) -> list[bool]:
    return [files.changed() for _ in range(count)]


def test_a_change_counts_once_and_at_the_second_look(tmp_path: Path) -> None:
    """Half a file is not taken for a whole one; and what was taken up is not taken up again."""
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_text("old")
    other.write_text("other")
    files = SecretFiles([key, other])
    assert looks(files) == [False, False]
    key.write_text("new, ha")
    assert looks(files, 1) == [False]
    key.write_text("new, half")
    assert looks(files, 4) == [False, True, False, False]


def test_the_same_content_written_anew_is_no_change(tmp_path: Path) -> None:
    """Kubernetes writes all files of a volume anew when one changes: connections by the others stay."""
    key, anew = tmp_path / "key", tmp_path / "anew"
    key.write_text("same")
    files = SecretFiles([key])
    anew.write_text("same")
    anew.rename(key)
    assert looks(files, 3) == [False, False, False]


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The target of a link is what changes where secrets are mounted."""
    for version in ("1", "2"):
        (tmp_path / version).write_text(f"version {version}")
    link, new = tmp_path / "key", tmp_path / "new"
    link.symlink_to("1")
    files = SecretFiles([link])
    new.symlink_to("2")
    new.rename(link)
    assert looks(files) == [False, True]


def test_what_could_not_be_read_is_read_once_its_mode_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chmod changes neither the time nor the size of a file."""
    key, anew = tmp_path / "key", tmp_path / "anew"
    key.write_text("old")
    files = SecretFiles([key])
    anew.write_text("new")
    anew.chmod(0o000)
    anew.rename(key)
    with monkeypatch.context() as forbidden:  # root may read it all the same
        forbidden.setattr("notifier.settings.secret_files.read_regular", _refuse)
        assert looks(files) == [False, True]
    key.chmod(0o600)
    assert looks(files) == [False, True]


def _refuse(path: Path, key: str) -> bytes:
    raise SettingsError(f"{key}: cannot read {path}: Permission denied")


@pytest.mark.parametrize("written", ["s3cret", " s3cret\r\n"])
def test_a_webhooks_secret_is_the_same_from_a_file_and_from_the_environment(tmp_path: Path, written: str) -> None:
    """`NOTIFIER_WEBHOOK_SECRET=$(cat secret)` loses the line's end; a tool that sets the variable may keep it."""
    (tmp_path / "secret").write_text(written)
    text = "events: {keep: 1d, webhook: {url: 'https://example.com/', secret_file: secret}}"
    hook = parse_settings(text, name=str(tmp_path / "n.yaml")).events.webhook
    assert hook is not None
    assert {hook.read_secret({}), hook.read_secret({"NOTIFIER_WEBHOOK_SECRET": written})} == {"s3cret"}


def test_what_is_gone_is_a_change(tmp_path: Path) -> None:
    """A file that is missing is a change, so that it is said; and so is its coming back."""
    key = tmp_path / "key"
    key.write_text("same")
    files = SecretFiles([key])
    key.unlink()
    assert looks(files, 3) == [False, True, False]
    key.write_text("same")
    assert looks(files, 3) == [False, True, False]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["a FIFO", "a folder"])
def test_what_is_no_file_is_refused(make, tmp_path: Path) -> None:
    """A FIFO without a writer would be waited for without end, so a worker says at once what is wrong."""
    make(tmp_path / "password")
    settings = parse_settings("redis: {password_file: password}", name=str(tmp_path / "notifier.yaml"))
    with pytest.raises(
        SettingsError, match=r"redis\.password_file: .*password(?: is no regular file|: Is a directory)"
    ):
        settings.redis.read_password()
    assert looks(SecretFiles([tmp_path / "password"])) == [False, False]


def test_a_bundle_of_certificates_is_read(tmp_path: Path) -> None:
    """It is not too large to be a secret."""
    file = tmp_path / "ca.pem"
    file.write_bytes(b"x" * 250_000)
    assert len(read_regular(file, "redis.ca_file")) == 250_000
