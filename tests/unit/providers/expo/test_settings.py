"""Expo in the configuration: which app sends with which access token, and which with none."""

from pathlib import Path

import pytest

from notifier import SettingsError
from notifier.settings import parse_settings


def token(expo: str, app: str | None = None, **environ: str) -> str:
    section = parse_settings(f"providers: {{expo: {expo}}}", name="n.yaml").providers.platforms()["expo"]
    return section.read_access_token(environ, app)  # type: ignore[attr-defined, no-any-return]


def test_a_token_goes_before_open_access(tmp_path: Path) -> None:
    """An app's own token is never dropped; what an app does not give, it takes from the section."""
    file = tmp_path / "token"
    file.write_text("of-the-file\n", encoding="utf-8")
    named = f"{{open_access: true, apps: {{shop: {{access_token_file: {file}}}, news: {{}}}}}}"
    assert token(named, "shop") == "of-the-file"
    assert token(named, "news") == ""
    assert token(named, "news", NOTIFIER_EXPO_TOKEN_NEWS="of-news") == "of-news"
    assert token(named, "shop", NOTIFIER_EXPO_TOKEN_SHOP="of-shop") == "of-shop"
    assert token("{open_access: true}") == ""
    assert token("{open_access: true}", NOTIFIER_EXPO_TOKEN="of-all") == "of-all"
    opened = f"{{access_token_file: {file}, apps: {{shop: {{open_access: true}}, news: {{open_access: false}}}}}}"
    assert token(opened, "shop", NOTIFIER_EXPO_TOKEN="of-all") == ""
    assert token(opened, "news") == "of-the-file"


def test_an_apps_token_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """It must not send without one because the section is open."""
    with pytest.raises(SettingsError, match=r"providers\.expo\.apps\.shop\.access_token_file"):
        token(f"{{open_access: true, apps: {{shop: {{access_token_file: {tmp_path / 'none'}}}}}}}", "shop")


def test_both_at_one_level_are_refused(tmp_path: Path) -> None:
    """One of the two was meant, and nobody else knows which."""
    both = f"{{open_access: true, access_token_file: {tmp_path / 'token'}}}"
    for expo, where in ((both, "open_access"), (f"{{apps: {{shop: {both}}}}}", "apps.shop.open_access")):
        with pytest.raises(SettingsError) as caught:
            token(expo)
        why = f"providers.expo.{where}: and access_token_file are two ways to send; give one of them"
        assert str(caught.value).split(": ", 1)[1] == why


def test_an_open_section_is_an_app_itself() -> None:
    """With named apps too, a notification without an app can be sent: it needs no token."""
    found = parse_settings("providers: {expo: {open_access: true, apps: {shop: {}}}}", name="n.yaml").providers
    assert found.platforms()["expo"].app_names == [None, "shop"]
