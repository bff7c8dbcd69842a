"""The job of a notification, as RQ reads it."""

from redis import Redis
from rq.job import Job

from notifier import deliver


def test_the_function_itself_names_the_job() -> None:
    """RQ is given the name or the function: it is the same job. `rq cron` takes functions alone."""
    with Redis(port=1) as nowhere:
        assert Job.create(deliver, connection=nowhere).func_name == "notifier.deliver"
