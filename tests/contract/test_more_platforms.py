"""HMS Push and Expo, through the protocol of any package's platform: the contract, and what is their own."""

import asyncio
import json
from typing import Any

import pytest

from notifier.notification import Device
from notifier.providers.contract import Outcome
from notifier.providers.expo import answers as expo_answers
from notifier.providers.hms import answers as hms_answers
from notifier.simulators.certificates import Certificates
from notifier.simulators.expo import OF_A_TICKET, ExpoSimulator
from notifier.simulators.hms import HmsSimulator
from notifier.simulators.provider_contract import ProviderContract
from notifier.simulators.provider_contract.stage import Stage, on_stage
from notifier.simulators.simulator import Simulator
from notifier.simulators.wire import Reply, WireLog

SECRET = "0123456789abcdef-the-app-secret"
ACCESS = "the-access-token-of-expo"


class TestHms(ProviderContract):
    platform = "hms"
    needs = {"body": "…"}
    rejected, dead, fault = Reply(400, "80100003"), Reply(400, "80300007"), Reply(400, "80300002")
    busy, busy_means = Reply(503, ""), Outcome.FULL
    environ = {"NOTIFIER_HMS_SECRET": SECRET}

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("hms", f"IQAAAACy0{number:040d}")

    def simulator(self, certificates: Certificates, log: WireLog) -> Simulator:
        return HmsSimulator(
            certificates=certificates, log=log, apps={"104200001": SECRET}, projects={"77": "104200001"}
        )

    def section(self, simulator: Simulator) -> dict[str, Any]:
        return {"app_id": "104200001", "token_endpoint": simulator.url}

    def secrets(self) -> list[str]:
        return [SECRET, "CgB6"]

    @on_stage()
    async def test_a_wrong_app_calls_no_token_dead(self, s: Stage) -> None:
        """Huawei says of every token that it is invalid where the app is another's: nobody's device is forgotten."""
        assert (await s.send(await s.device(self.dead))).outcome is Outcome.REJECTED
        assert (await s.send()).outcome is Outcome.DELIVERED
        assert (await s.send(await s.device(self.dead))).outcome is Outcome.DEAD_TOKEN

    @pytest.mark.parametrize(
        ("status", "body", "outcome", "reason"),
        [
            (200, {"code": "80000000"}, Outcome.DELIVERED, ""),
            (200, {"code": 80000000}, Outcome.DELIVERED, ""),
            (200, {"code": "80300007", "msg": "noRight"}, Outcome.REJECTED, "80300007"),
            (200, {"code": "80100000", "msg": "tokenFormatError"}, Outcome.DEAD_TOKEN, "80100000"),
            (200, {"code": "89999999"}, Outcome.UNKNOWN, "89999999"),
            (400, {"code": "80000000"}, Outcome.UNKNOWN, "80000000"),
            (200, {"code": ["80000000"]}, Outcome.UNKNOWN, "NoCode"),
            (200, [], Outcome.UNKNOWN, "NoCode"),
            (503, {}, Outcome.FULL, ""),
            (503, {"code": "81000001"}, Outcome.UNKNOWN, "81000001"),
        ],
    )
    def test_any_body_is_borne(self, status: int, body: object, outcome: Outcome, reason: str) -> None:
        """The code decides, whatever the HTTP status beside it; what is no code is not repeated."""
        answer = hms_answers.read(status, {}, json.dumps(body).encode())
        assert (answer.outcome, answer.reason) == (outcome, reason)


@pytest.mark.parametrize("platform", ["hms", "expo"])
async def test_an_option_that_it_does_not_have_is_rejected(platform: str) -> None:
    """Also of a job that was enqueued without the producer's checks: the provider names the option."""
    async with {"hms": TestHms, "expo": TestExpo}[platform]().stage() as s:
        answer = await s.send(options={platform: {"no_such": 1}})
        assert answer.outcome is Outcome.REJECTED
        assert answer.reason.startswith(f"InvalidNotification: options.{platform}.no_such")
        assert await s.arrivals() == []


class ByProject(TestHms):
    __test__ = False

    def section(self, simulator: Simulator) -> dict[str, Any]:
        return super().section(simulator) | {"project_id": "77"}


async def test_hms_may_be_asked_by_project() -> None:
    """As v2 of its API is; the access token is still the app's."""
    async with ByProject().stage() as s:
        assert (await s.send()).outcome is Outcome.DELIVERED
        (arrival,) = await s.arrivals()
        assert arrival.app == "77"


class TestExpo(ProviderContract):
    platform = "expo"
    collapses = False
    rejected, dead, fault = Reply(400, "MessageTooBig"), Reply(400, "DeviceNotRegistered"), Reply(401, "UNAUTHORIZED")
    busy, busy_means = Reply(429, "TOO_MANY_REQUESTS"), Outcome.FULL
    environ = {"NOTIFIER_EXPO_TOKEN": ACCESS}
    projects: dict[str, str] = {}

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("expo", f"ExponentPushToken[{number:022d}]")

    def simulator(self, certificates: Certificates, log: WireLog) -> Simulator:
        return ExpoSimulator(certificates=certificates, log=log, access_token=ACCESS, projects=self.projects)

    def section(self, simulator: Simulator) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def secrets(self) -> list[str]:
        return [ACCESS]

    def status_of(self, reply: Reply) -> int:
        return 200 if reply.reason in OF_A_TICKET else reply.status

    def test_one_that_spoils_a_request_spoils_it_for_itself_alone(self) -> None:
        """Two projects in one request: Expo takes none of it, so each is sent alone, and each arrives once."""
        stranger = "ExponentPushToken[of-another-project]"

        @on_stage()
        async def law(_: TestExpo, s: Stage) -> None:
            devices = [await s.device() for _ in range(5)]
            s.devices.append(Device("expo", stranger))
            answers = await asyncio.gather(*(s.send(device) for device in s.devices))
            assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
            taken = [arrival.token for arrival in await s.arrivals() if arrival.status == 200]
            assert sorted(taken) == sorted([stranger, *(device.token for device in devices)])

        self.projects = {stranger: "@another/app"}
        law(self)

    @on_stage()
    async def test_what_tickets_refuse_is_not_sent_again(self, s: Stage) -> None:
        """Expo has judged each message of the request by itself, even if it refused all."""
        devices = [await s.device(self.rejected) for _ in range(3)]
        answers = await asyncio.gather(*(s.send(device) for device in devices))
        assert {answer.outcome for answer in answers} == {Outcome.REJECTED}
        assert len(await s.arrivals()) == len(devices)

    @on_stage()
    async def test_one_that_is_too_large_takes_no_other_with_it(self, s: Stage) -> None:
        """Expo refuses a request as a whole for its size."""
        answers = await asyncio.gather(s.send(title="x" * 5_000), s.send())
        assert [(answer.outcome, answer.reason) for answer in answers] == [
            (Outcome.REJECTED, "MessageTooBig"), (Outcome.DELIVERED, ""),
        ]  # fmt: skip
        assert len(await s.arrivals()) == 1

    @on_stage()
    async def test_a_hundred_tickets_are_read(self, s: Stage) -> None:
        """Each may have an error of Expo's length."""
        devices = [await s.device(self.dead) for _ in range(100)]
        answers = await asyncio.gather(*(s.send(device) for device in devices))
        assert {answer.outcome for answer in answers} == {Outcome.DEAD_TOKEN}

    @on_stage()
    async def test_a_device_that_has_too_many_waits_for_itself(self, s: Stage) -> None:
        """A ticket's MessageRateExceeded is of one device; the credentials of an app are a person's to repair."""
        busy, wrong, fine = await asyncio.gather(
            s.send(await s.device(Reply(400, "MessageRateExceeded"))),
            s.send(await s.device(Reply(400, "InvalidCredentials"))),
            s.send(),
        )
        assert (busy.outcome, wrong.outcome, fine.outcome) == (Outcome.BUSY, Outcome.REFUSED, Outcome.DELIVERED)
        assert "dashboard" in wrong.help

    @pytest.mark.parametrize(
        ("body", "count"),
        [
            ({"data": [{"status": "ok", "id": "a"}]}, 2),
            ({"data": 7}, 1),
            ({"data": [7]}, 1),
            ({"errors": {}}, 1),
            ([], 1),
        ],
    )
    def test_an_answer_without_a_ticket_for_each_is_unknown(self, body: object, count: int) -> None:
        """Whose ticket is missing, nobody knows: none of them is believed."""
        raw = json.dumps(body).encode()
        assert expo_answers.read_tickets(raw, count) == []
        assert expo_answers.read_request(200, {}, raw).outcome is Outcome.UNKNOWN

    @pytest.mark.parametrize("ticket", [{}, {"status": 7}, {"details": {"error": []}}])
    def test_a_ticket_that_says_neither_ok_nor_error_is_none(self, ticket: dict[str, Any]) -> None:
        """Expo may have taken it, so it counts for the user."""
        answer, receipt = expo_answers.read_ticket(ticket)
        assert (answer.outcome, answer.reason, receipt) == (Outcome.UNKNOWN, "NoTicket", "")

    @pytest.mark.parametrize(
        ("details", "outcome", "reason"),
        [
            (7, Outcome.REJECTED, ""),
            ({"error": []}, Outcome.REJECTED, ""),
            ({"error": "ExpoError"}, Outcome.RETRY, "ExpoError"),
            ({"error": "ProviderError"}, Outcome.RETRY, "ProviderError"),
        ],
    )
    def test_any_error_is_borne(self, details: object, outcome: Outcome, reason: str) -> None:
        """What says not why is refused, and not repeated; trouble of Expo, Apple or Google is."""
        answer, receipt = expo_answers.read_ticket({"status": "error", "details": details})
        assert (answer.outcome, answer.reason, receipt) == (outcome, reason, "")


class WithoutToken(TestExpo):
    __test__ = False
    environ = {}

    def simulator(self, certificates: Certificates, log: WireLog) -> Simulator:
        return ExpoSimulator(certificates=certificates, log=log)


async def test_expo_may_need_no_access_token() -> None:
    """Then a request has none: Expo would refuse an empty one."""
    async with WithoutToken().stage() as s:
        assert (await s.send()).outcome is Outcome.DELIVERED
