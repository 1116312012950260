"""Dead letters, the audit log, and replays."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the four tables."""
    op.create_table(
        "audit_log",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("letter_id", sa.BigInteger(), nullable=True),
        sa.Column("replay_id", sa.BigInteger(), nullable=True),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.Column("details", sa.Text(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_log_group_id", "audit_log", ["group_id"], unique=False)
    op.create_index("ix_audit_log_letter_id", "audit_log", ["letter_id"], unique=False)
    op.create_index("ix_audit_log_replay_id", "audit_log", ["replay_id"], unique=False)

    op.create_table(
        "dead_letters",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=True),
        sa.Column("state", sa.String(length=20), server_default="open", nullable=False),
        sa.Column("state_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("died_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("task_name", sa.String(length=255), nullable=True),
        sa.Column("task_id", sa.String(length=255), nullable=True),
        sa.Column("args", sa.Text(), nullable=True),
        sa.Column("kwargs", sa.Text(), nullable=True),
        sa.Column("decode_problem", sa.Text(), nullable=True),
        sa.Column("retries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("idempotency_key", sa.String(length=512), nullable=True),
        sa.Column("replay_key", sa.String(length=255), nullable=True),
        sa.Column("drained_queue", sa.String(length=255), nullable=False),
        sa.Column("queue", sa.String(length=255), nullable=False),
        sa.Column("exchange", sa.String(length=255), nullable=False),
        sa.Column("routing_key", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.String(length=255), nullable=False),
        sa.Column("body_bytes", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("properties", sa.LargeBinary(), nullable=False),
        sa.Column("encrypted", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("note_key", sa.Text(), nullable=True),
        sa.Column("note_reason", sa.String(length=255), nullable=True),
        sa.Column("error_type", sa.String(length=255), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("hostname", sa.Text(), nullable=True),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("runtime_seconds", sa.Float(), nullable=True),
        sa.Column("release", sa.String(length=255), nullable=True),
        sa.Column("claim_state", sa.String(length=255), nullable=True),
        sa.Column("note_fingerprint", sa.Text(), nullable=True),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_letters")),
        sa.UniqueConstraint("identity", name=op.f("uq_dead_letters_identity")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_dead_letters_content_hash",
        "dead_letters",
        ["content_hash"],
        unique=False,
        postgresql_where=sa.text("content_hash IS NOT NULL"),
        sqlite_where=sa.text("content_hash IS NOT NULL"),
    )
    op.create_index("ix_dead_letters_died_at", "dead_letters", ["died_at"], unique=False)
    op.create_index("ix_dead_letters_group_id_id", "dead_letters", ["group_id", "id"], unique=False)
    op.create_index(
        "ix_dead_letters_note_key",
        "dead_letters",
        ["id"],
        unique=False,
        postgresql_where=sa.text("note_key IS NOT NULL"),
        sqlite_where=sa.text("note_key IS NOT NULL"),
    )
    op.create_index("ix_dead_letters_queue_id", "dead_letters", ["queue", "id"], unique=False)
    op.create_index("ix_dead_letters_reason_id", "dead_letters", ["reason", "id"], unique=False)
    op.create_index(
        "ix_dead_letters_replay_key",
        "dead_letters",
        ["replay_key"],
        unique=False,
        postgresql_where=sa.text("replay_key IS NOT NULL"),
        sqlite_where=sa.text("replay_key IS NOT NULL"),
    )
    op.create_index("ix_dead_letters_state_id", "dead_letters", ["state", "id"], unique=False)
    op.create_index("ix_dead_letters_task_id", "dead_letters", ["task_id"], unique=False)
    op.create_index("ix_dead_letters_task_name_id", "dead_letters", ["task_name", "id"], unique=False)

    op.create_table(
        "replays",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), server_default="{}", nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("state_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state_note", sa.Text(), nullable=True),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replays")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "replay_items",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("replay_id", sa.BigInteger(), nullable=False),
        sa.Column("letter_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("outcome_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("new_letter_id", sa.BigInteger(), nullable=True),
        sa.Column("edited_body", sa.LargeBinary(), nullable=True),
        sa.Column("edited_properties", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["letter_id"], ["dead_letters.id"], name=op.f("fk_replay_items_letter_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["replay_id"], ["replays.id"], name=op.f("fk_replay_items_replay_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replay_items")),
        sa.UniqueConstraint("key", name=op.f("uq_replay_items_key")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_replay_items_letter_id", "replay_items", ["letter_id"], unique=False)
    op.create_index("ix_replay_items_replay_id_state_id", "replay_items", ["replay_id", "state", "id"], unique=False)
