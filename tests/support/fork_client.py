"""Has a program run by the fork server in this process's place: `fork_client.py ADDRESS PROGRAM [ARGUMENT …]`.

Run by the programs of `subprocesses.programs` under `python -IS`: each import here is time that a fork saves. Folder,
environment, standard streams and signals go there, the exit code comes back. What cannot be forked is started here.
"""

from __future__ import annotations

import _socket
import marshal
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    address, *words = sys.argv[1:]
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.connect(f"\0{address}")

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with suppress(OSError):  # it has just ended
            server.send(str(number).encode())

    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # the request comes first
    ignored = [int(one) for one in PASSED_ON if signal.getsignal(one) is signal.SIG_IGN]
    for one in PASSED_ON:
        if one not in ignored:
            signal.signal(one, pass_on)
    request = os.memfd_create("request")
    with open(request, "wb", closefd=False) as order:
        marshal.dump((words, os.getcwd(), dict(os.environ), ignored), order)  # noqa: PTH109 - as above
    descriptors = b"".join(one.to_bytes(4, sys.byteorder) for one in (request, 0, 1, 2))
    server.sendmsg([b"!"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    answer = server.recv(16)
    if answer == b"start it":
        os.execv(words[0], words)
    code = int(answer)
    if code >= 0:
        os._exit(code)
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


main()
