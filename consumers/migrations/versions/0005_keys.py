"""Which key the content of a row is encrypted with; none for a row that is clear."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLES = ("dead_letters", "replay_items", "failure_groups", "alerts")


def upgrade() -> None:
    """Add a column that is empty, and an index that is: neither database rewrites the table."""
    for table in TABLES:
        op.add_column(table, sa.Column("key_id", sa.String(length=12), nullable=True))
    encrypted = sa.text("key_id IS NOT NULL")
    op.create_index(
        "ix_dead_letters_key_id", "dead_letters", ["id"], postgresql_where=encrypted, sqlite_where=encrypted
    )


def downgrade() -> None:
    """Take the columns away, unless that would lose the only word on how to open a row."""
    for table in TABLES:
        sealed = (
            sa.select(sa.literal(1)).select_from(sa.table(table)).where(sa.column("key_id").is_not(None)).limit(1)
        )
        if op.get_bind().execute(sealed).first() is not None:
            raise RuntimeError(f"{table} has encrypted rows: decrypt them first, see docs/reference/privacy.md")
    op.drop_index("ix_dead_letters_key_id", "dead_letters")
    for table in TABLES:
        op.drop_column(table, "key_id")
