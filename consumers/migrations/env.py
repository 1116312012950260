"""Alembic's entry: runs on the connection that ``consumers.database.upgrade`` hands over."""

from alembic import context

from consumers import alerts, audit, dead_letters, groups, replays  # noqa: F401, they fill the metadata
from consumers.database import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
)
context.run_migrations()
