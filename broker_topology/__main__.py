"""The command ``broker-topology``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

import click

from broker_topology import telling
from broker_topology.address import BrokerAddress
from broker_topology.definitions import read_definitions_text
from broker_topology.deploy import deploy as deploy_topology
from broker_topology.deploy import plan as plan_topology
from broker_topology.errors import DeadLetterOfficeError
from broker_topology.lint import Report, lint_text, rule_of
from broker_topology.lint import lint as lint_definitions
from broker_topology.management import ManagementApi, default_management_url
from broker_topology.migrate import WATCH_SECONDS, Migrated, Options, begun, differing
from broker_topology.migrate import abort as abort_migration
from broker_topology.migrate import migrate as migrate_queue
from broker_topology.observation import take_snapshot
from broker_topology.plan import Action
from broker_topology.preflight import MigrationRefusedError
from broker_topology.rules import RULES
from broker_topology.sarif import to_sarif
from broker_topology.topology import Queue, Topology, read_topology
from broker_topology.verify import verify as verify_topology
from broker_topology.versions import Version

F = TypeVar("F", bound=Callable[..., Any])

JOINED_GROUP = "broker_topology.commands"
"""Entry points of commands that live where more is known, such as ``doctor`` in the wing that knows Celery."""

DEFAULT_URL = "amqp://guest:guest@localhost:5672/%2F"


class _Failure(click.ClickException):
    """What was asked cannot be done: one sentence, exit code 2."""

    exit_code = 2


class _Commands(click.Group):
    """A group whose commands end with one sentence where they fail. Other packages may join it with commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Our own commands, and those that joined."""
        return sorted({*super().list_commands(ctx), *(joined.name for joined in entry_points(group=JOINED_GROUP))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of our own, or one that joined, loaded when it is asked for."""
        own = super().get_command(ctx, cmd_name)
        joined = None if own else next(iter(entry_points(group=JOINED_GROUP, name=cmd_name)), None)
        return joined.load() if joined else own

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Our errors become its exit code 2."""
        try:
            return super().invoke(ctx)
        except DeadLetterOfficeError as error:
            raise _Failure(str(error)) from error


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


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dead-letter-office")
def main() -> None:
    """Make, check, deploy and prove the topology of a RabbitMQ broker from a definitions file."""


@main.command()
@click.argument("file", type=click.Path(), required=False)
@click.option(
    "--live", is_flag=True, help="Lint the broker's state; with FILE, lint FILE knowing the broker's depths."
)
@click.option("--target", metavar="VERSION", help="The RabbitMQ version that FILE must hold on, such as 3.10.")
@click.option("--explain", metavar="RULE", help="Explain a rule, or 'all' of them; 'table' is Markdown.")
@broker_options
@json_option
@click.option("--sarif", "as_sarif", is_flag=True, help="Print SARIF, for code hosts.")
@click.pass_context
def lint(
    context: click.Context,
    file: str | None,
    live: bool,
    target: str | None,
    explain: str | None,
    url: str,
    management_url: str | None,
    ca_file: str | None,
    vhost: str | None,
    as_json: bool,
    as_sarif: bool,
) -> None:
    """Say what is dangerous in FILE, or on a broker.

    FILE must hold on every version from 3.10 to 4.3, unless it is an export of one version or --target names
    one. A rule is switched off in FILE, with a reason: see docs/reference/lint-rules.md.

    \b
    Examples:
      broker-topology lint definitions.json
      broker-topology lint definitions.json --target 4.0 --sarif > lint.sarif
      broker-topology lint --live --url amqp://rabbit/shop
      broker-topology lint --explain dlq-drops-returned

    \b
    Exit codes:
      0  no finding of severity error
      1  at least one
      2  it could not be done
    """
    if explain == "table":
        click.echo(telling.rules_table(), nl=False)
        return
    if explain is not None:
        rules = RULES if explain == "all" else (rule_of(explain),)
        for rule in rules:
            _print(telling.rule_lines(rule))
        return
    version = Version.parse(target) if target else None
    if live:
        report = _lint_live(file, BrokerAddress.parse(url, ca_file=ca_file), management_url, vhost, version)
    elif file is not None:
        report = lint_text(read_definitions_text(file), name=file, target=version)
    else:
        raise click.UsageError("name a FILE, or --live, or --explain RULE")
    if as_json or as_sarif:
        _print_json(to_sarif(report) if as_sarif else telling.lint_json(report))
    else:
        _print(telling.lint_lines(report))
    context.exit(1 if report.failed else 0)


def _lint_live(
    file: str | None, address: BrokerAddress, management_url: str | None, vhost: str | None, target: Version | None
) -> Report:
    with ManagementApi(management_url or default_management_url(address), address) as management:
        snapshot = take_snapshot(management, address.vhost)
    version = target or snapshot.version
    if file is None:
        live = {address.vhost: snapshot.live}
        return lint_definitions(snapshot.definitions, name=str(address), target=version, live=live)
    own = read_topology(file, vhost=vhost or address.vhost).vhost
    return lint_text(read_definitions_text(file), name=file, target=version, live={own: snapshot.live})


@main.command()
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
    """Say what a deploy of FILE would do, and what it could not.

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
        _read(file, url, vhost),
        url,
        management_url=management_url,
        ca_file=ca_file,
        delayed_delivery=delayed_delivery,
    )
    if as_json:
        _print_json(telling.plan_json(found))
    else:
        _print(telling.plan_lines(found.plan))
        _warn(telling.policies_line(found))
        if not found.plan.drift:
            click.echo("nothing to change")
    context.exit(0)


@main.command()
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
    """Bring a broker to what FILE says; nothing is ever deleted.

    Policies come before queues, so that they hold when the first message arrives.

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
        _read(file, url, vhost),
        url,
        management_url=management_url,
        ca_file=ca_file,
        delayed_delivery=delayed_delivery,
    )
    if as_json:
        _print_json(telling.plan_json(deployed))
    else:
        _print(telling.plan_lines(deployed.plan) if check else telling.deploy_lines(deployed))
        _warn(telling.policies_line(deployed))
    failed = bool(deployed.plan.drift) if check else deployed.failed
    context.exit(1 if failed else 0)


@main.command()
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
    """Prove on a live broker that dead letters arrive where FILE says, and stay there.

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
    topology = _read(file, url, vhost)
    with ManagementApi(management_url or default_management_url(address), address) as management:
        verdict = verify_topology(topology, address, management)
    if as_json:
        _print_json(telling.verdict_json(verdict))
    else:
        _print(telling.verdict_lines(verdict))
    context.exit(1 if verdict.faults else 0)


@main.command()
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
    """Replace queues whose arguments cannot be changed, without losing a message.

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
    topology = _read(file, url, vhost)
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
                _print(str(change) for change in deployed.plan.of(Action.CONFLICT))
                context.exit(1)
            chosen = differing(topology, queues, deployed.plan)
            done += [_migrate_one(queue, address, management, options) for queue in chosen]
        except MigrationRefusedError as error:
            click.echo(f"Error: {error}", err=True)
            context.exit(1)
    if as_json:
        _print_json({"migrated": [asdict(migrated) for migrated in done]})
    else:
        _print(telling.migration_lines(done))


def _migrate_one(queue: Queue, address: BrokerAddress, management: ManagementApi, options: Options) -> Migrated:
    return migrate_queue(queue, address, management, options, tell=_tell_about(queue.name))


def _tell_about(queue: str) -> Callable[[str], None]:
    return lambda line: click.echo(f"{queue}: {line}", err=True)


def _read(file: str, url: str, vhost: str | None) -> Topology:
    return read_topology(file, vhost=vhost or BrokerAddress.parse(url).vhost)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


def _warn(line: str | None) -> None:
    if line is not None:
        click.echo(line, err=True)


if __name__ == "__main__":
    main()
