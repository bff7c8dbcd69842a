"""A Flask extension in a few lines: the Notifier of the app, made with it."""

from __future__ import annotations

from flask import Flask, current_app

from notifier import Notifier


class Push:
    """`push = Push()`, then `push.init_app(app)`, then `push.notifier` wherever an app is active."""

    def init_app(self, app: Flask) -> None:
        """Make the app's Notifier. It opens no connection yet, so a server may fork after this."""
        app.extensions["push"] = Notifier.from_config(app.config["NOTIFIER_CONFIG"])

    @property
    def notifier(self) -> Notifier:
        """The Notifier of the active app."""
        notifier: Notifier = current_app.extensions["push"]
        return notifier
