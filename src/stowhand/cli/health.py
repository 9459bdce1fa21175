"""``stowhand health``: ask a worker on this machine for its health, for probes that run a command."""

from __future__ import annotations

import http.client
import json
from typing import Any

import click

from stowhand.app.settings.addresses import LOOPBACK_HOST, split_address
from stowhand.cli.help import Command
from stowhand.cli.options import http_option, settings_of
from stowhand.errors import ConfigurationError
from stowhand.observe.safe_text import escape, shorten
from stowhand.service.exit_codes import FAILURE, OK

TIMEOUT_SECONDS = 2.0
MAX_ANSWER_BYTES = 65_536
MAX_TEXT_LENGTH = 500
LOOPBACK_OF_WILDCARD = {"0.0.0.0": LOOPBACK_HOST, "::": "::1"}


@click.command(cls=Command)
@http_option
@click.option("--ready", is_flag=True, help="Ask whether it can work now (/readyz), not whether it is alive.")
def command(ready: bool, **option_values: Any) -> int:
    """Ask a running worker whether it is alive, or ready.

    It prints one line with the reason, and exits with code 0 or 1.

    It asks the worker that was started with the same --http or STOWHAND_HTTP.
    """
    address = settings_of(option_values).http
    if address is None:
        raise ConfigurationError("no address: use --http [HOST:]PORT or STOWHAND_HTTP, as for the worker")
    is_healthy, reason = request_health(address, "/readyz" if ready else "/healthz")
    click.echo(reason)
    return OK if is_healthy else FAILURE


def request_health(address: str, path: str) -> tuple[bool, str]:
    """Return whether the worker is healthy, and the reason."""
    host, port = split_address(address)
    connection = http.client.HTTPConnection(LOOPBACK_OF_WILDCARD.get(host, host), port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer_fields = json.loads(answer.read(MAX_ANSWER_BYTES))
        words = [answer_fields["status"], *answer_fields["reasons"]]
        return answer.status == 200, shorten(
            escape(": ".join([words[0], "; ".join(words[1:])]).rstrip(": ")), MAX_TEXT_LENGTH
        )
    except TimeoutError:
        return False, f"no answer from {address} within {TIMEOUT_SECONDS:g} s"
    except OSError as error:
        return False, f"no answer from {address}: {error.strerror or error}"
    except (http.client.HTTPException, ValueError, KeyError, TypeError):
        return False, f"the server at {address} is not a worker"
    finally:
        connection.close()
