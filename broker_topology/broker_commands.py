"""The commands of broker-topology that work on a broker: plan, deploy, verify, migrate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from broker_topology import telling
from broker_topology.address import BrokerAddress
from broker_topology.deploy import deploy as deploy_topology
from broker_topology.deploy import plan as plan_topology
from broker_topology.management import ManagementApi, default_management_url
from broker_topology.migrate import WATCH_SECONDS, Migrated, Options, begun, differing
from broker_topology.migrate import abort as abort_migration
from broker_topology.migrate import migrate as migrate_queue
from broker_topology.options import (
    broker_options,
    delays_option,
    json_option,
    print_json,
    print_lines,
    read_file,
    warn,
)
from broker_topology.plan import Action
from broker_topology.preflight import MigrationRefusedError
from broker_topology.topology import Queue
from broker_topology.verify import verify as verify_topology


@click.command()
@click.argument("file", type=click.Path())
@broker_options
@delays_option
@json_option
@click.pass_context
def plan(
    context: click.Context,
    file: str,
    url: str,
    management_url: str | None,
    ca_file: str | None,
    vhost: str | None,
    delayed_delivery: bool,
    as_json: bool,
) -> None:
    """Say what a deploy of FILE would do.

    \b
    create    is missing on the broker
    change    a policy differs; it is changed live
    migrate   an immutable argument differs; see broker-topology migrate
    conflict  somebody has to decide
    extra     is only on the broker; reported, never deleted

    \b
    Examples:
      broker-topology plan definitions.json
      broker-topology plan definitions.json --url amqps://rabbit/shop --json
    """
    found = plan_topology(
        read_file(file, url, vhost),
        url,
        management_url=management_url,
        ca_file=ca_file,
        delayed_delivery=delayed_delivery,
    )
    if as_json:
        print_json(telling.plan_json(found))
    else:
        print_lines(telling.plan_lines(found.plan))
        warn(telling.policies_line(found))
        if not found.plan.drift:
            click.echo("nothing to change")
    context.exit(0)


@click.command()
@click.argument("file", type=click.Path())
@broker_options
@delays_option
@click.option("--check", is_flag=True, help="Change nothing; exit 1 where the broker is not as FILE says.")
@json_option
@click.pass_context
def deploy(
    context: click.Context,
    file: str,
    url: str,
    management_url: str | None,
    ca_file: str | None,
    vhost: str | None,
    delayed_delivery: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Bring a broker to what FILE says.

    Nothing is ever deleted. Policies come before queues, so that they hold when the first message arrives.

    \b
    Examples:
      broker-topology deploy definitions.json
      broker-topology deploy definitions.json --url amqp://user:p%40ss@rabbit:5672/shop
      broker-topology deploy definitions.json --url amqps://rabbit/shop --ca-file ca.pem
      broker-topology deploy definitions.json --management-url https://rabbit/admin --json
      broker-topology deploy definitions.json --check

    \b
    Exit codes:
      0  the broker is as FILE says
      1  it is not: a queue or exchange exists with other arguments (then nothing was changed), another
         policy overrules one of FILE, or --check found drift
      2  it could not be done
    """
    run = plan_topology if check else deploy_topology
    deployed = run(
        read_file(file, url, vhost),
        url,
        management_url=management_url,
        ca_file=ca_file,
        delayed_delivery=delayed_delivery,
    )
    if as_json:
        print_json(telling.plan_json(deployed))
    else:
        print_lines(telling.plan_lines(deployed.plan) if check else telling.deploy_lines(deployed))
        warn(telling.policies_line(deployed))
    failed = bool(deployed.plan.drift) if check else deployed.failed
    context.exit(1 if failed else 0)


@click.command()
@click.argument("file", type=click.Path())
@broker_options
@json_option
@click.pass_context
def verify(
    context: click.Context,
    file: str,
    url: str,
    management_url: str | None,
    ca_file: str | None,
    vhost: str | None,
    as_json: bool,
) -> None:
    """Prove on a live broker that dead letters arrive.

    Probe messages are rejected, expire, come back too often and are unroutable; a dead-letter queue must keep
    one through 25 returns; at-least-once dead-lettering must hold on to one that cannot be delivered. Workers
    and drains see none of them. It takes some seconds for each kind of queue, and needs the management API.

    \b
    Examples:
      broker-topology verify definitions.json
      broker-topology verify definitions.json --url amqps://rabbit/shop --json

    \b
    Exit codes:
      0  proven
      1  at least one fault, each named on a line of its own
      2  it could not be tried
    """
    address = BrokerAddress.parse(url, ca_file=ca_file)
    topology = read_file(file, url, vhost)
    with ManagementApi(management_url or default_management_url(address), address) as management:
        verdict = verify_topology(topology, address, management)
    if as_json:
        print_json(telling.verdict_json(verdict))
    else:
        print_lines(telling.verdict_lines(verdict))
    context.exit(1 if verdict.faults else 0)


@click.command()
@click.argument("file", type=click.Path())
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@broker_options
@click.option(
    "--journal-dir",
    type=click.Path(file_okay=False),
    default=".",
    help="Where the journal of each migration is kept; a run that was killed goes on from it.",
)
@click.option("--abort", is_flag=True, help="Take a begun migration of QUEUE back, where the queue still exists.")
@click.option(
    "--publishers-stopped",
    is_flag=True,
    help="Your word that nobody publishes to the queues through the default exchange.",
)
@click.option(
    "--watch-seconds",
    type=click.FloatRange(0, 3600),
    default=WATCH_SECONDS,
    show_default=True,
    help="How long an emptied queue is watched for publishers that are not held back.",
)
@json_option
@click.pass_context
def migrate(
    context: click.Context,
    file: str,
    queues: tuple[str, ...],
    url: str,
    management_url: str | None,
    ca_file: str | None,
    vhost: str | None,
    journal_dir: str,
    abort: bool,
    publishers_stopped: bool,
    watch_seconds: float,
    as_json: bool,
) -> None:
    """Replace queues that cannot be changed in place.

    Nothing is lost, and a run that was killed goes on.

    Publishers go on: what they send is held back until the queue is there again. Consumers must be stopped,
    and publishers must use an exchange, not the default one. What was in the queue keeps its ids, but its order
    mixes with what is new. Run it again after a crash, in the same folder.

    \b
    Examples:
      broker-topology migrate definitions.json
      broker-topology migrate definitions.json celery --publishers-stopped
      broker-topology migrate definitions.json payments --journal-dir /var/lib/broker-topology
      broker-topology migrate definitions.json payments --abort

    \b
    Exit codes:
      0  the queues are as FILE says
      1  a queue was left as it is, for the reason told
      2  it could not be done, or was interrupted: run it again
    """
    address = BrokerAddress.parse(url, ca_file=ca_file)
    topology = read_file(file, url, vhost)
    options = Options(folder=Path(journal_dir), publishers_stopped=publishers_stopped, watch_seconds=watch_seconds)
    with ManagementApi(management_url or default_management_url(address), address) as management:
        try:
            if abort:
                for name in queues:
                    abort_migration(name, address, management, options, tell=_tell_about(name))
                return
            # What was begun comes first: a deploy would lay bindings that its detour has taken up.
            chosen = begun(topology, queues, options.folder, address.vhost)
            done = [_migrate_one(queue, address, management, options) for queue in chosen]
            deployed = deploy_topology(
                topology,
                url,
                management_url=management_url or default_management_url(address),
                ca_file=ca_file,
                before_migration=True,
            )
            if deployed.plan.of(Action.CONFLICT):
                print_lines(str(change) for change in deployed.plan.of(Action.CONFLICT))
                context.exit(1)
            chosen = differing(topology, queues, deployed.plan)
            done += [_migrate_one(queue, address, management, options) for queue in chosen]
        except MigrationRefusedError as error:
            click.echo(f"Error: {error}", err=True)
            context.exit(1)
    if as_json:
        print_json({"migrated": [asdict(migrated) for migrated in done]})
    else:
        print_lines(telling.migration_lines(done))


def _migrate_one(queue: Queue, address: BrokerAddress, management: ManagementApi, options: Options) -> Migrated:
    return migrate_queue(queue, address, management, options, tell=_tell_about(queue.name))


def _tell_about(queue: str) -> Callable[[str], None]:
    return lambda line: click.echo(f"{queue}: {line}", err=True)
