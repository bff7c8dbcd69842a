"""The processes: PushWorker, an RQ worker class that sends notifications and never bursts a user."""

from workers.push import PushWorker

__all__ = ["PushWorker"]
