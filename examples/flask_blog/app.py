"""A blog in Flask that tells its readers of comments.

gunicorn --preload --workers 2 'app:create_app()'
"""

from __future__ import annotations

import os
from pathlib import Path

from flask import Flask, abort, request
from push import Push

from notifier import Device, InvalidNotificationError, Notification, OverloadedError, RedisUnusableError

push = Push()


def create_app() -> Flask:
    """Make the program."""
    app = Flask(__name__)
    app.config["NOTIFIER_CONFIG"] = Path(__file__).with_name("notifier.yaml")
    push.init_app(app)

    @app.errorhandler(OverloadedError)
    @app.errorhandler(RedisUnusableError)
    def later(_error: Exception) -> tuple[dict[str, object], int]:
        """Answer for each route that nothing was accepted or read now."""
        return {"error": "try again later"}, 503

    @app.post("/comments")
    def comment() -> tuple[dict[str, object], int]:
        """Tell a reader of a comment."""
        device = Device("fcm", request.form["token"])
        try:
            job_id = push.notifier.send(
                Notification(
                    user=request.form["reader"], devices=[device], title="New comment", body=request.form["text"]
                )
            )
        except InvalidNotificationError as error:
            abort(422, str(error))
        return {"job_id": job_id, "process": os.getpid()}, 202

    @app.get("/comments/<job_id>")
    def show(job_id: str) -> dict[str, str]:
        """What became of it."""
        status = push.notifier.status(job_id)
        if status is None:
            abort(404)
        return {"state": status.state}

    return app
