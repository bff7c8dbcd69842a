"""Expo in the configuration: which app sends with which access token, and which with none."""

from pathlib import Path

import pytest

from notifier import SettingsError
from notifier.settings import parse_settings


def token(expo: str, app: str | None = None, **environ: str) -> str:
    section = parse_settings(f"providers: {{expo: {expo}}}", name="n.yaml").providers.platforms()["expo"]
    return section.read_secret(environ, app)  # type: ignore[no-any-return]


def test_an_app_sends_with_its_own_token_or_the_sections_or_none(tmp_path: Path) -> None:
    """An app's own token is never dropped; what an app does not give, it takes from the section."""
    file = tmp_path / "token"
    file.write_text("of-the-file\n", encoding="utf-8")
    named = f"{{apps: {{shop: {{access_token_file: {file}}}, news: {{}}}}}}"
    assert token(named, "shop") == "of-the-file"
    assert token(named, "news") == ""
    assert token(named, "news", NOTIFIER_EXPO_TOKEN_NEWS="of-news") == "of-news"
    assert token(named, "shop", NOTIFIER_EXPO_TOKEN_SHOP="of-shop") == "of-shop"
    assert token("{}") == ""
    assert token("{}", NOTIFIER_EXPO_TOKEN="of-all") == "of-all"
    assert token(f"{{access_token_file: {file}, apps: {{news: {{}}}}}}", "news") == "of-the-file"


def test_an_apps_token_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """It must not send without one."""
    with pytest.raises(SettingsError, match=r"providers\.expo\.apps\.shop\.access_token_file"):
        token(f"{{apps: {{shop: {{access_token_file: {tmp_path / 'none'}}}}}}}", "shop")
