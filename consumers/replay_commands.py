"""The commands that act on letters: replay and discard."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import sqlalchemy as sa

from broker_topology.topology import read_topology
from consumers import replay as replaying
from consumers import showing
from consumers.audit import Act
from consumers.choosing import acts, chooses, chosen
from consumers.obstacles import obstacles
from consumers.publisher import Publisher
from consumers.replay import ReplayOptions
from consumers.replay_edits import read_edit
from consumers.replay_screen import finish, show_preview
from consumers.replays_commands import replays_command
from consumers.settings import Settings
from consumers.shell import EXIT_REFUSED, database, login, masking, now, one_sentence, prepared_settings


@click.command("replay")
@chooses
@acts
@click.option("--dry-run", is_flag=True, help="Only say what would be replayed, and what stands against it.")
@click.option("--to-queue", help="Send to this queue instead of where each letter came from.")
@click.option("--keep-expiry", is_flag=True, help="Keep expiration and expires as they were.")
@click.option("--canary", default=0, type=click.IntRange(0), help="So many go first; their outcome is awaited.")
@click.option("--rate", help="Letters a second at most, such as 50/s.")
@click.option("--stop-at", "stop_share", default=0.2, show_default=True, type=click.FloatRange(0, 1))
@click.option("--await-seconds", default=300.0, show_default=True, help="How long a step's outcome is awaited.")
@click.option("--as", "settle_as", type=click.Choice(["repeat", "done"]), help="Settle letters in doubt.")
@click.option("--edit", "by_hand", is_flag=True, help="Change the arguments of one letter in $EDITOR first.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change one argument first: kwargs.amount=10, args.0=ada. JSON, else text. May be repeated.",
)
@click.option("--result", "result_json", help="With --as done: the result of the work, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def replay_command(
    reason: str,
    actor: str | None,
    dry_run: bool,
    rate: str | None,
    yes: bool,
    as_json: bool,
    by_hand: bool,
    assignments: tuple[str, ...],
    **given: Any,
) -> None:
    """Publish dead letters again, each to the queue that it came from.

    The original bytes are sent, with a fresh retry budget, the same task id and the same idempotency key.
    What a filter chooses is frozen when it is confirmed: letters that come later are not in it. Nothing is
    ever replayed on a timer.

    An edited message keeps its idempotency key: where the key's work is done already, a replay gets that result
    and runs nothing; where it is not, the new arguments run. The letter itself stays as it was.

    \b
    Examples:
      dead-letters replay 17 18 --reason "provider is back"
      dead-letters replay --task crm.sync_customer_record --reason "customers exist now" --canary 5 --rate 50/s
      dead-letters replay --group 3 --reason "look first" --dry-run
      dead-letters replay 17 --reason "charged, says the provider" --as done --result '{"id": "ch_1"}'
      dead-letters replay 17 --reason "typo in the order" --set kwargs.amount=10
      dead-letters replay 17 --reason "typo in the order" --edit
    """
    settings = prepared_settings()
    act = Act(actor=actor or login(), reason=reason)
    engine = database(settings)
    letter_ids = chosen(engine, given)
    options = ReplayOptions(
        rate=_rate(rate),
        result_json=_json_or_none(given.pop("result_json"), given["settle_as"]),
        **{name: given[name] for name in _OPTIONS},
    )
    if (by_hand or assignments) and options.settle_as == "done":
        raise click.UsageError("what is done is not run again, so there is nothing to edit")
    ask = not (given["letter_ids"] or yes)
    if dry_run or ask:
        _look(settings, engine, letter_ids, to_queue=options.to_queue, as_json=as_json and dry_run)
    if dry_run:
        return
    edit = read_edit(engine, letter_ids, by_hand=by_hand, assignments=assignments)
    if ask:
        click.confirm(f"Replay these {len(letter_ids)} letters?", abort=True, err=True)
    with Publisher(settings.amqp_url) as publisher:
        report = replaying.begin(
            engine, act, letter_ids, now=now(), options=options, edit=edit, masking=masking(settings)
        )
        finish(settings, engine, publisher, report, as_json=as_json)


def _look(
    settings: Settings, engine: sa.Engine, letter_ids: list[int], *, to_queue: str | None, as_json: bool
) -> None:
    """Show what a replay would be, and what stands against it."""
    seen = replaying.preview(engine, read_topology(settings.topology_file), letter_ids)
    against = obstacles(
        engine, letter_ids, amqp_url=settings.amqp_url, redis_url=settings.redis_url, to_queue=to_queue
    )
    show_preview(seen, against, as_json=as_json)


_OPTIONS = ("to_queue", "keep_expiry", "canary", "stop_share", "await_seconds", "settle_as")


@click.command("discard")
@chooses
@acts
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@one_sentence
def discard_command(reason: str, actor: str | None, yes: bool, as_json: bool, **given: Any) -> None:
    """Decide against dead letters: they stay in the database, and nobody waits for them any more.

    \b
    Example:
      dead-letters discard 17 --reason "test data"
    """
    act = Act(actor=actor or login(), reason=reason)
    engine = database()
    letter_ids = chosen(engine, given)
    if not given["letter_ids"] and not yes:
        click.confirm(f"Discard {len(letter_ids)} letters?", abort=True, err=True)
    discarded = replaying.discard(engine, act, letter_ids, now=now())
    if as_json:
        click.echo(showing.as_json({"discarded": discarded}))
    else:
        click.echo(f"{len(discarded)} discarded.")
    if set(letter_ids) - set(discarded):
        click.echo(f"{len(set(letter_ids) - set(discarded))} were not open.", err=True)
        sys.exit(EXIT_REFUSED)


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0
    if not 0 < rate < float("inf"):
        raise click.BadParameter("give a rate such as 50/s", param_hint="--rate")
    return rate


def _json_or_none(text: str | None, settle_as: str | None) -> str | None:
    if text is None:
        return None
    if settle_as != "done":
        raise click.UsageError("--result goes with --as done")
    try:
        json.loads(text)
    except ValueError:
        raise click.BadParameter("it is not JSON", param_hint="--result") from None
    return text


REPLAY_COMMANDS = (replay_command, discard_command, replays_command)
