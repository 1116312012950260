"""ENTRY: the command ``broker-topology``."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import Any

import click

from broker_topology import broker_commands, file_commands
from broker_topology.errors import DeadLetterOfficeError


class _Failure(click.ClickException):
    """What was asked cannot be done: one sentence, exit code 2."""

    exit_code = 2


JOINED_GROUP = "broker_topology.commands"
"""Entry points of commands that live where more is known, such as ``doctor`` in the wing that knows Celery."""


class _Commands(click.Group):
    """A group whose commands end with one sentence where they fail, and are listed as they are used."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Our errors become its exit code 2."""
        try:
            return super().invoke(ctx)
        except DeadLetterOfficeError as error:
            raise _Failure(str(error)) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, click's signature
        """The commands in the order in which a file comes to a broker, then those that joined."""
        return [*self.commands, *(joined.name for joined in entry_points(group=JOINED_GROUP))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of our own, or one that joined, loaded when it is asked for."""
        own = super().get_command(ctx, cmd_name)
        joined = None if own else next(iter(entry_points(group=JOINED_GROUP, name=cmd_name)), None)
        return joined.load() if joined else own


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dead-letter-office")
def main() -> None:
    """Make, check, deploy and prove the topology of a RabbitMQ broker from a definitions file."""
    if not logging.getLogger().handlers:
        # What drivers log is told by our own sentences; without a handler Python prints it beside them.
        logging.getLogger().addHandler(logging.NullHandler())


for command in (
    file_commands.new,
    file_commands.add_queue,
    file_commands.remove_queue,
    file_commands.lint,
    broker_commands.plan,
    broker_commands.deploy,
    broker_commands.verify,
    broker_commands.migrate,
    file_commands.graph,
    file_commands.permissions,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
