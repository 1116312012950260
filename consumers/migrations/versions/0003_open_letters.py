"""Open letters by task and by error: what people ask for first, however many settled ones there are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make two partial indexes."""
    for column in ("task_name", "error_type"):
        op.create_index(
            f"ix_dead_letters_open_{column}_id",
            "dead_letters",
            [column, "id"],
            unique=False,
            postgresql_where=sa.text("state = 'open'"),
            sqlite_where=sa.text("state = 'open'"),
        )
