"""What the commands of broker-topology have in common: options, reading and printing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from broker_topology.address import BrokerAddress
from broker_topology.topology import Topology, read_topology

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "amqp://guest:guest@localhost:5672/%2F"


def broker_options(function: F) -> F:
    """The options of every command that talks to a broker."""
    options = (
        click.option(
            "--url",
            envvar="AMQP_URL",
            default=DEFAULT_URL,
            metavar="URL",
            help="The broker and virtual host; by default AMQP_URL, or the broker on this machine.",
        ),
        click.option(
            "--management-url",
            envvar="MANAGEMENT_URL",
            metavar="URL",
            # An empty variable, as compose files make them, is one that is not set.
            callback=lambda _context, _option, value: value or None,
            help="The management API; by default port 15672 (15671 with TLS) beside the broker.",
        ),
        click.option("--ca-file", envvar="AMQP_CA_FILE", metavar="PEM", help="A private certificate authority."),
        click.option("--vhost", metavar="NAME", help="Which virtual host of the file, where it has several."),
    )
    for option in reversed(options):
        function = option(function)
    return function


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
delays_option = click.option(
    "--delayed-delivery/--no-delayed-delivery",
    default=True,
    help="Also declare Celery's delay queues, so that retries can wait before a worker has started.",
)


def read_file(file: str, url: str, vhost: str | None) -> Topology:
    """The topology of a file, for the virtual host that is named or that the URL leads to."""
    return read_topology(file, vhost=vhost or BrokerAddress.parse(url).vhost)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines for people."""
    for line in lines:
        click.echo(line)


def print_json(value: object) -> None:
    """Print one JSON value for scripts."""
    click.echo(json.dumps(value, indent=2))


def warn(line: str | None) -> None:
    """Print a line beside the output, if there is one."""
    if line is not None:
        click.echo(line, err=True)
