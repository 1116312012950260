"""The commands of broker-topology that work on a file: new, add-queue, remove-queue, lint, graph, permissions."""

from __future__ import annotations

import os
from pathlib import Path

import click

from broker_topology import edit, telling
from broker_topology.address import BrokerAddress
from broker_topology.definitions import read_definitions_text
from broker_topology.errors import ConfigurationError, TopologyError
from broker_topology.graph import make_graph, mermaid
from broker_topology.lint import Report, lint_text, rule_of
from broker_topology.lint import lint as lint_definitions
from broker_topology.management import ManagementApi, default_management_url
from broker_topology.observation import take_snapshot
from broker_topology.options import broker_options, json_option, print_json, print_lines
from broker_topology.permissions import Role, new_password, rights, user_definitions
from broker_topology.rules import RULES
from broker_topology.sarif import to_sarif
from broker_topology.svg import svg
from broker_topology.topology import read_topology
from broker_topology.units import byte_count, milliseconds
from broker_topology.versions import Version

file_argument = click.argument("file", type=click.Path())
vhost_option = click.option("--vhost", metavar="NAME", help="Which virtual host of FILE, where it has several.")


@click.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--vhost", default="/", show_default=True, metavar="NAME", help="The virtual host of the file.")
def new(queues: tuple[str, ...], vhost: str) -> None:
    """Print a hardened file for these work queues.

    Quorum queues behind a topic exchange, at-least-once dead-lettering, a dead-letter queue that drops nothing,
    and a queue for what cannot be routed.

    \b
    Examples:
      broker-topology new payments emails > definitions.json
    """
    click.echo(edit.new_definitions(queues, vhost=vhost), nl=False)


@click.command("add-queue")
@file_argument
@click.argument("queue")
@click.option("--delivery-limit", type=click.IntRange(1), help="Returns until a message is dead-lettered; 5 else.")
@click.option("--max-length-bytes", metavar="SIZE", help="Such as 512MiB; 1GiB else.")
@click.option("--max-length", type=click.IntRange(1), help="Messages.")
@click.option("--consumer-timeout", metavar="DURATION", help="How long a task may run, such as 2h.")
@click.option("--exchange", metavar="NAME", help="The exchange to bind it to; by default the other work queues'.")
@vhost_option
def add_queue(
    file: str,
    queue: str,
    delivery_limit: int | None,
    max_length_bytes: str | None,
    max_length: int | None,
    consumer_timeout: str | None,
    exchange: str | None,
    vhost: str | None,
) -> None:
    """Add a work queue to FILE.

    It is hardened like those that are there, and the rest of FILE stays byte for byte. Without limits it joins
    the policy of the others, with limits it gets a policy of its own.

    \b
    Examples:
      broker-topology add-queue definitions.json emails
      broker-topology add-queue definitions.json reports --consumer-timeout 2h --max-length-bytes 4GiB
    """
    limits = edit.Limits(
        delivery_limit=delivery_limit,
        max_length_bytes=byte_count(max_length_bytes) if max_length_bytes else None,
        max_length=max_length,
        consumer_timeout_ms=milliseconds(consumer_timeout) if consumer_timeout else None,
    )
    text = edit.add_queue(read_definitions_text(file), queue, limits, exchange=exchange, vhost=vhost, name=file)
    _rewrite(file, text)
    click.echo(f"added queue {queue}: broker-topology deploy {file} creates it")


@click.command("remove-queue")
@file_argument
@click.argument("queue")
@vhost_option
def remove_queue(file: str, queue: str, vhost: str | None) -> None:
    """Remove a queue from FILE.

    Its bindings and its part in policies go too; the rest of FILE stays byte for byte.

    \b
    Examples:
      broker-topology remove-queue definitions.json emails
    """
    _rewrite(file, edit.remove_queue(read_definitions_text(file), queue, vhost=vhost, name=file))
    click.echo(f"removed queue {queue} from {file}; on the broker it stays until somebody deletes it")


@click.command()
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
            print_lines(telling.rule_lines(rule))
        return
    version = Version.parse(target) if target else None
    if live:
        report = _lint_live(file, BrokerAddress.parse(url, ca_file=ca_file), management_url, vhost, version)
    elif file is not None:
        report = lint_text(read_definitions_text(file), name=file, target=version)
    else:
        raise click.UsageError("name a FILE, or --live, or --explain RULE")
    if as_json or as_sarif:
        print_json(to_sarif(report) if as_sarif else telling.lint_json(report))
    else:
        print_lines(telling.lint_lines(report))
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


@click.command()
@file_argument
@click.option("--format", "kind", type=click.Choice(["mermaid", "svg"]), default="mermaid", show_default=True)
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write there instead of printing.")
@vhost_option
def graph(file: str, kind: str, output: str | None, vhost: str | None) -> None:
    """Draw FILE as mermaid or SVG.

    The roads of dead and of unroutable messages are drawn apart.

    \b
    Examples:
      broker-topology graph definitions.json
      broker-topology graph definitions.json --format svg -o topology.svg
    """
    topology = read_topology(file, vhost=vhost)
    picture = make_graph(topology)
    text = svg(picture, title=f"{file}, virtual host {topology.vhost}") if kind == "svg" else mermaid(picture)
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(Path(output), text)


@click.command()
@file_argument
@click.option("--explain", is_flag=True, help="Print what each role may do and why, instead of definitions.")
@click.option("--prefix", default="", metavar="TEXT", help="Put before each user's name.")
@click.option(
    "--secrets",
    "secrets_file",
    type=click.Path(dir_okay=False),
    help="Write generated passwords there; the file must be new, and nobody else can read it.",
)
@vhost_option
def permissions(file: str, explain: bool, prefix: str, secrets_file: str | None, vhost: str | None) -> None:
    """Print least-privilege users as definitions.

    One for each of deployer, publisher, worker and drain, to be imported.

    Passwords come from DEPLOYER_PASSWORD, PUBLISHER_PASSWORD, WORKER_PASSWORD and DRAIN_PASSWORD, or are
    generated into the file of --secrets; the definitions hold salted hashes.

    \b
    Examples:
      broker-topology permissions definitions.json --secrets passwords.env > users.json
      rabbitmqctl import_definitions users.json
      broker-topology permissions definitions.json --explain
    """
    topology = read_topology(file, vhost=vhost)
    if explain:
        print_lines(telling.rights_lines(rights(topology)))
        return
    passwords = {role: os.environ.get(_variable(role), "") for role in Role}
    missing = [role for role, password in passwords.items() if not password]
    if missing and secrets_file is None:
        names = ", ".join(_variable(role) for role in missing)
        raise ConfigurationError(f"{names} not set: set them, or name a file for generated passwords with --secrets")
    generated = {role: new_password() for role in missing}
    if secrets_file is not None:
        _write_secrets(Path(secrets_file), {_variable(role): password for role, password in generated.items()})
    print_json(user_definitions(topology, passwords | generated, vhost=vhost or topology.vhost, prefix=prefix))


def _variable(role: Role) -> str:
    return f"{role.upper()}_PASSWORD"


def _rewrite(file: str, text: str) -> None:
    """Replace a file at once, so that nobody reads half of it."""
    draft = Path(f"{file}.new")
    _write(draft, text)
    try:
        draft.chmod(Path(file).stat().st_mode)
        draft.replace(file)
    except OSError as error:
        raise TopologyError(f"cannot write {file}: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise TopologyError(f"cannot write {path}: {error.strerror}") from error


def _write_secrets(path: Path, passwords: dict[str, str]) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(f"{name}={password}\n" for name, password in passwords.items())
