"""``dead-letters``: drain, look at, and replay dead letters."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any, NoReturn

import click
from rich.console import Console

from broker_topology.errors import ConfigurationError
from broker_topology.topology import read_topology
from consumers import audit, dead_letters, finding, showing
from consumers.alert_config import read_alert_config
from consumers.alert_service import AlertService, Watched
from consumers.chores import DrainChores
from consumers.database import (
    open_database,
    reading,
)
from consumers.dead_letters import Filter, State
from consumers.drain import Drain, DrainOptions
from consumers.failure_notes import FailureNotes
from consumers.filing import Filing
from consumers.finding import MAX_COUNTED, MAX_LOOKED_AT, Found
from consumers.group_commands import COMMANDS
from consumers.health import AddressTakenError, Health, HealthServer
from consumers.metrics import DrainMetrics
from consumers.occurrences import announce
from consumers.outcomes import Outcomes
from consumers.replay_commands import REPLAY_COMMANDS
from consumers.settings import Settings
from consumers.shell import EXIT_REFUSED, database, keyring, masking, now, one_sentence, prepared_settings
from consumers.startup import fit_process, until_schema_is_known
from consumers.upkeep_commands import UPKEEP_COMMANDS

USUAL_HEALTH_PORT = 9808


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="dead-letter-office")
def main() -> None:
    """Drain, look at, and replay the dead letters of Celery tasks.

    Settings come from the environment or a .env file: AMQP_URL, DATABASE_URL, REDIS_URL, TOPOLOGY_FILE.
    `dead-letters config` shows all of them.

    \b
    Examples:
      dead-letters drain
      dead-letters list --task payments.charge_customer
      dead-letters show 17
      dead-letters replay 17 18 --reason "provider is back"

    Exit codes: 0 done, 1 refused, 2 wrong usage, 70 an error of ours, 75 a server is away, 78 wrong configuration.
    """


@main.command()
@click.option("--auto-upgrade", is_flag=True, help="Bring the schema up to date first (always so on SQLite).")
@one_sentence
def drain(auto_upgrade: bool) -> None:
    """Run the drain: dead letters from the broker into the database.

    It runs until SIGTERM or Ctrl-C, then finishes the batch in hand. A broker or database that is away is
    waited for.

    \b
    Example:
      AMQP_URL=amqp://... DATABASE_URL=postgresql://... dead-letters drain
    """
    settings = prepared_settings()
    topology = read_topology(settings.topology_file)
    if not topology.drained_queues:
        raise ConfigurationError(f"{settings.topology_file} has no dead-letter queue to drain")
    alert_config = read_alert_config(settings.alerts_file, settings.alert_urls)
    engine = open_database(settings.database_url, keyring=keyring(settings))
    fit_process()
    notes, health, metrics = FailureNotes(settings.redis_url), Health(), DrainMetrics()
    outcomes = Outcomes(settings.redis_url, engine, clock=now)
    server = _health_server(settings, health, metrics)
    filing = Filing(alert_config, masking(settings))
    service = Drain(
        amqp_url=settings.amqp_url,
        topology=topology,
        engine=engine,
        notes=notes,
        announce=announce,
        filing=filing,
        chores=DrainChores(engine, notes, health, filing, outcomes, clock=now).run,
        health=health,
        metrics=metrics,
        options=DrainOptions(
            prefetch=settings.drain_prefetch,
            held_bytes=settings.drain_held_bytes,
            max_decoded_bytes=settings.drain_max_decoded_bytes,
            stop_seconds=settings.drain_stop_seconds,
        ),
    )
    speaker = AlertService(
        engine,
        alert_config,
        clock=now,
        watched=Watched(
            depths=metrics.depths,
            oldest_seconds=metrics.oldest_seconds,
            storing_problem=lambda: health.problem("database"),
        ),
    )
    stopping = _stopped_by_signals(service)
    try:
        upgrades = auto_upgrade or engine.dialect.name == "sqlite"
        if until_schema_is_known(engine, health, stopping, auto_upgrade=upgrades):
            speaker.start()
            try:
                service.run()
            finally:
                speaker.stop()
    finally:
        server.close()
        outcomes.close()
        engine.dispose()


def _stopped_by_signals(service: Drain) -> threading.Event:
    """Let SIGTERM and Ctrl-C stop the drain; the event tells whoever waits before it runs."""
    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopping


def _health_server(settings: Settings, health: Health, metrics: DrainMetrics) -> HealthServer:
    """Listen on the port that was asked for, or on the usual one where nobody else does."""
    if settings.health_port is not None:
        return HealthServer(health, metrics, host=settings.health_host, port=settings.health_port)
    try:
        return HealthServer(health, metrics, host=settings.health_host, port=USUAL_HEALTH_PORT)
    except AddressTakenError:
        return HealthServer(health, metrics, host=settings.health_host, port=0)


@main.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([*(state.value for state in State), "all"]),
    help="Default: open.",
)
@click.option("--task", help="Name of the task.")
@click.option("--queue", help="Queue that it died in.")
@click.option("--reason", "--broker-reason", "reason", help="Why it died, in the broker's words.")
@click.option("--error", "error_type", help="Exception type, with its module.")
@click.option("--task-id", help="Id of the task.")
@click.option("--group", "group_id", type=int, help="Id of the group.")
@click.option("--search", help="Text in args or kwargs.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--before", type=int, help="Go on from this id: the next page.")
@click.option(
    "--exhaustive",
    is_flag=True,
    help=f"Look at every letter for --search or a second option, not at the newest {MAX_LOOKED_AT:,} alone.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for scripts.")
@one_sentence
def list_letters(
    states: tuple[str, ...],
    limit: int,
    before: int | None,
    exhaustive: bool,
    as_json: bool,
    **filters: str | int | None,
) -> None:
    """List dead letters, newest first.

    One option beside the state is answered at once, among any number of letters. A text (--search) and further
    options are looked for among the newest letters that the first option chooses; what was not looked at is said.

    \b
    Examples:
      dead-letters list
      dead-letters list --state all --queue payments --limit 10
      dead-letters list --json | jq .task_name
    """
    chosen = tuple(State(state) for state in states if state != "all") if states else (State.OPEN,)
    where = Filter(states=() if "all" in states else chosen, **filters)  # type: ignore[arg-type]
    settings = prepared_settings()
    with reading(database(settings)) as connection:
        found = finding.find(connection, where, limit=limit, before_id=before, exhaustive=exhaustive)
    hides = masking(settings)
    letters = [hides.letter(letter) for letter in found.letters]
    if as_json:
        for letter in letters:
            click.echo(showing.as_json(letter))
    else:
        _tell(found, letters)
    if found.looked_to is not None:
        click.echo(
            f"Only letters from {found.looked_to} on were looked at; older ones: --before {found.looked_to}, "
            "or all of them: --exhaustive",
            err=True,
        )
    if found.unsearched:
        many = str(found.unsearched) if found.unsearched <= MAX_COUNTED else f"more than {MAX_COUNTED}"
        click.echo(f"--search does not look into encrypted letters: {many} were passed over", err=True)


def _tell(found: Found, letters: list[dict[str, Any]]) -> None:
    console = Console()
    if not letters:
        console.print("No dead letters.")
        return
    console.print(showing.letters_table(letters, now=now()))
    if found.total > len(letters):
        many = str(found.total) if found.total <= MAX_COUNTED else f"more than {MAX_COUNTED}"
        console.print(f"{len(letters)} of {many}; the next page: --before {letters[-1]['id']}")


@main.command()
@click.argument("letter_id", type=int)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def show(letter_id: int, as_json: bool) -> None:
    """Show one dead letter with everything that is known of it.

    \b
    Example:
      dead-letters show 17
    """
    settings = prepared_settings()
    with reading(database(settings)) as connection:
        letter, problem = dead_letters.get_shown(connection, letter_id)
        history = audit.audit_of(connection, letter_id=letter_id)
    if as_json:
        click.echo(showing.as_json(showing.described(letter, masking(settings)) | {"history": history}))
    else:
        showing.show_letter(Console(), letter, history, masking(settings))
    if problem:
        click.echo(f"dead-letters: {problem}", err=True)
        sys.exit(EXIT_REFUSED)


for _command in (*REPLAY_COMMANDS, *UPKEEP_COMMANDS, *COMMANDS):
    main.add_command(_command)


def _run() -> NoReturn:
    main(prog_name="dead-letters")
    sys.exit(0)


if __name__ == "__main__":
    _run()
