"""The apns-id of a push."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from notifier.providers.apns.provider import APNS_IDS, apns_id


@given(st.text(), st.text())
def test_an_apns_id_is_a_uuid_by_job_and_token(job_id: str, token: str) -> None:
    """Apple refuses what is no UUID; this is the one that the standard library makes of the same name."""
    assert apns_id(job_id, token) == str(uuid.uuid5(uuid.UUID(bytes=APNS_IDS), f"{job_id}:{token}"))
