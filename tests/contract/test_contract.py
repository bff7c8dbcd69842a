"""What every provider promises: the suite that a package's platform runs too, over ours and real sockets."""

from tests.contract.rigs import Apns, Console, Fcm, WebPush


class TestConsole(Console):
    """What it promises without a network."""


class TestApns(Apns):
    """APNs, over the client that can be had."""


class TestFcm(Fcm):
    """FCM over HTTP v1."""


class TestWebPush(WebPush):
    """Browsers."""

    # What a service says of the sender may be one subscription's fault: webpush/test_provider.py has that.
    test_credentials_that_end_early = None
