"""The processes: PushWorker, an RQ worker class that sends notifications within each user's limits."""

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from workers.push import PushWorker as PushWorker

__getattr__, __dir__ = lazily(
    __name__,
    {
        "workers.push": "PushWorker",
    },
)
