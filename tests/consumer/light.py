"""What `pip install push-throttle` brings to a producer: run in an environment that has nothing else."""

from importlib.metadata import distributions
from pathlib import Path

from notifier import Device, Notification
from notifier.testing import FakeNotifier

MAX_PACKAGES = 12
MAX_MB = 18  # what the wheels bring, without the bytecode that Python makes of it

fake = FakeNotifier()
fake.send(Notification(user="7", devices=[Device("apns", "ab" * 32)], title="Hello"))
assert [found.title for found in fake.delivered("7")] == ["Hello"]

installed = [found for found in distributions() if found.name not in {"pip", "setuptools", "wheel"}]
files = {Path(found.locate_file(file)) for found in installed for file in found.files or () if file.suffix != ".pyc"}
size = sum(file.stat().st_size for file in files if file.is_file()) / 1e6
print(f"{len(installed)} packages, {size:.1f} MB")
assert len(installed) <= MAX_PACKAGES, sorted(found.name for found in installed)
assert size <= MAX_MB
