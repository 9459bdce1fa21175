"""As whom a test server runs. PostgreSQL refuses to run as root, and we change nothing on the machine.

In order: as ourselves when we are not root; as root seen from inside a user namespace as an ordinary user
(files stay ours); as an account that exists anyway (its files lie in a folder it owns).
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NAMESPACE = ("unshare", "-U", "--map-user=1000", "--map-group=1000")
UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True)
class Account:
    """How to start a program so that it does not run as root."""

    prefix: tuple[str, ...] = ()  # words in front of the command
    user: str | None = None  # another account, which must own what it writes

    def own(self, folder: Path) -> None:
        """Hand a folder to the other account, if there is one."""
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(folder, entry.pw_uid, entry.pw_gid)

    def can_run(self, program: Path) -> bool:
        """Whether this account reaches the program: a clone in root's home is closed to others."""
        try:
            return self.run([str(program), "--version"]).returncode == 0
        except PermissionError:
            return False

    def run(self, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run to the end; stdout and stderr come back together."""
        with self.start(command, stdout=subprocess.PIPE, **environment) as process:
            output, _ = process.communicate(timeout=120)
        return subprocess.CompletedProcess(command, process.returncode, output)

    def start(self, command: list[str], *, stdout: int, **environment: str) -> subprocess.Popen[str]:
        """Start in a session of its own, so that a Ctrl-C at the terminal is ours to pass on."""
        entry = pwd.getpwnam(self.user) if self.user is not None else None
        return subprocess.Popen(
            [*self.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env=_clean_environment() | environment,
            user=entry.pw_uid if entry else None,
            group=entry.pw_gid if entry else None,
            extra_groups=[] if entry else None,
            start_new_session=True,
        )


@cache
def choose_account() -> Account:
    """The first way that works here."""
    if os.geteuid() != 0:
        return Account()
    return _in_a_namespace() or existing_account() or _refuse()


def _in_a_namespace() -> Account | None:
    """Containers often forbid user namespaces, small systems have no `unshare` that maps: so it is tried."""
    if shutil.which(NAMESPACE[0]) is None:
        return None
    account = Account(prefix=NAMESPACE)
    return account if account.run(["true"]).returncode == 0 else None


def existing_account() -> Account | None:
    """An ordinary account that most systems have. Usable only by root."""
    names = {entry.pw_name for entry in pwd.getpwall() if entry.pw_uid != 0}
    return next((Account(user=name) for name in UNPRIVILEGED if name in names), None)


def _refuse() -> Account:
    raise RuntimeError(
        "PostgreSQL does not run as root, user namespaces are not allowed here, and no account named "
        f"{' or '.join(UNPRIVILEGED)} exists. Run the tests as an ordinary user, or set DATABASE_URL."
    )


def _clean_environment() -> dict[str, str]:
    """Without PG*: a PGPORT or PGDATA of the developer would reach the server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
