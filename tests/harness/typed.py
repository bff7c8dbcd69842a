"""A program as a shell starts it; the process that it stands for is forked from a warm one, by tests/harness/warm.py.

It passes on its input and outputs, its signals and its exit status. If it is killed, so is the other. It imports
little, because that is what it is for.
"""

import _thread
import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    # They wait to be passed on: a handler of Python would not run if a signal came just before `recv` begins to wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    control, beside = os.environ["WARM"].split(" ", 1)
    name = os.path.basename(sys.argv[0])  # noqa: PTH119 - to import pathlib takes longer than all of this
    command = [f"{beside}/{name}", *sys.argv[1:]]
    if name == "python":
        # The other knows itself by the name that the tests' Python has.
        command[0] = sys.executable
    # A shell lets what it starts in the background ignore Ctrl-C.
    ignored = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    request = {"args": command, "env": dict(os.environ), "folder": os.getcwd(), "ignored": ignored}  # noqa: PTH109
    told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.socket(fileno=os.dup(int(control))) as forker, theirs:
        socket.send_fds(forker, [json.dumps(request).encode()], [theirs.fileno(), 0, 1, 2])
    pid = int(told.recv(64))
    _thread.start_new_thread(pass_on, (pid,))  # `threading` takes long to import
    status = int(told.recv(64))
    return status if status >= 0 else 128 - status


def pass_on(pid: int) -> None:
    while True:
        number = signal.sigwait(SIGNALS)
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it has ended just now
            return


if __name__ == "__main__":
    sys.exit(main())
