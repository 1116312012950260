"""The command ``broker-topology``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from broker_topology.address import BrokerAddress
from broker_topology.deploy import Deployed
from broker_topology.deploy import deploy as deploy_topology
from broker_topology.errors import DeadLetterOfficeError
from broker_topology.topology import read_topology


class _Failure(click.ClickException):
    """What was asked cannot be done: one sentence, exit code 2."""

    exit_code = 2


class _Commands(click.Group):
    """A group whose commands end with one sentence where they fail."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except DeadLetterOfficeError as error:
            raise _Failure(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dead-letter-office")
def main() -> None:
    """Deploy and check the topology of a RabbitMQ broker from a definitions file."""


@main.command()
@click.argument("file", type=click.Path())
@click.option(
    "--url",
    envvar="AMQP_URL",
    default="amqp://guest:guest@localhost:5672/%2F",
    metavar="URL",
    help="The broker and virtual host to deploy to; by default AMQP_URL, or the broker on this machine.",
)
@click.option(
    "--management-url",
    envvar="MANAGEMENT_URL",
    metavar="URL",
    help="The management API, for policies; by default port 15672 (15671 with TLS) beside the broker.",
)
@click.option("--ca-file", envvar="AMQP_CA_FILE", metavar="PEM", help="A private certificate authority.")
@click.option("--vhost", metavar="NAME", help="Which virtual host of the file, where it has several.")
@click.option(
    "--delayed-delivery/--no-delayed-delivery",
    default=True,
    help="Also declare Celery's delay queues, so that retries can wait before a worker has started.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def deploy(
    context: click.Context,
    file: str,
    url: str,
    management_url: str | None,
    ca_file: str | None,
    vhost: str | None,
    delayed_delivery: bool,
    as_json: bool,
) -> None:
    """Declare what FILE says on a broker; nothing is ever deleted.

    \b
    Examples:
      broker-topology deploy definitions.json
      broker-topology deploy definitions.json --url amqp://user:p%40ss@rabbit:5672/shop
      broker-topology deploy definitions.json --url amqps://rabbit/shop --ca-file ca.pem
      broker-topology deploy definitions.json --management-url https://rabbit/admin --json

    \b
    Exit codes:
      0  the broker is as the file says
      1  a queue or exchange exists with other arguments; nothing was changed
      2  it could not be done
    """
    address = BrokerAddress.parse(url, ca_file=ca_file)
    topology = read_topology(file, vhost=vhost or address.vhost)
    deployed = deploy_topology(
        topology, url, management_url=management_url, ca_file=ca_file, delayed_delivery=delayed_delivery
    )
    if as_json:
        click.echo(json.dumps(asdict(deployed) | {"changed": deployed.changed}, indent=2))
    else:
        _tell(deployed)
    context.exit(1 if deployed.declared.conflicts else 0)


def _tell(deployed: Deployed) -> None:
    declared = deployed.declared
    if declared.conflicts:
        for conflict in declared.conflicts:
            click.echo(str(conflict))
        click.echo(f"nothing was changed: {len(declared.conflicts)} arguments differ and cannot be changed in place")
        return
    for name in deployed.policies_set:
        click.echo(f"set     policy {name}")
    for name in declared.created:
        click.echo(f"created {name}")
    if deployed.left_out_because:
        names = ", ".join(deployed.policies_left_out)
        click.echo(f"policies not set ({names}): {deployed.left_out_because}", err=True)
    if not deployed.changed:
        in_place = len(declared.unchanged) + len(declared.ensured) + len(deployed.policies_unchanged)
        click.echo(f"nothing to change: all {in_place} objects are in place")


if __name__ == "__main__":
    main()
