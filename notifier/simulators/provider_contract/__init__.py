"""The promises of every provider, as tests: subclass `ProviderContract` in a test file, and pytest runs them.

A platform brings its simulator, a server that answers as the real one does. Each test gets a new provider, which is
built from a section of the YAML as a worker builds it, and a new simulator on a free port of this machine::

    class TestPigeon(ProviderContract):
        platform = "pigeon"
        rejected, dead = Reply(400, "BadLetter"), Reply(410, "Gone")
        busy, fault = Reply(429, "Tired"), Reply(401, "WrongRing")

        def device(self, number: int, endpoint: str) -> Device: ...
        def simulator(self, certificates: Certificates, log: WireLog) -> Simulator: ...
        def section(self, simulator: Simulator) -> dict[str, Any]: ...

docs/how-to/platforms.md shows a whole one. Needs pytest and the packages of `python -m notifier.simulators`.
"""

from notifier.simulators.provider_contract.platform import ProviderContract

__all__ = ["ProviderContract"]
