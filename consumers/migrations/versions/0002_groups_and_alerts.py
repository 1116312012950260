"""Failure groups, and the outbox of alerts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables; letters that are there already are grouped by ``dead-letters regroup``."""

    op.create_table(
        "alert_windows",
        sa.Column("window_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("spoken", sa.Integer(), nullable=False),
        sa.Column("held_back", sa.Integer(), nullable=False),
        sa.Column("summarised_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("window_at", name=op.f("pk_alert_windows")),
    )
    op.create_table(
        "alerts",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("uid", sa.String(length=32), nullable=False),
        sa.Column("about", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("severity", sa.String(length=20), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
        sa.UniqueConstraint("about", name=op.f("uq_alerts_about")),
        sa.UniqueConstraint("uid", name=op.f("uq_alerts_uid")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_alerts_at", "alerts", ["at"], unique=False)
    op.create_index("ix_alerts_group_id", "alerts", ["group_id"], unique=False)
    op.create_table(
        "failure_groups",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("rules_version", sa.Integer(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("task_name", sa.String(length=255), nullable=True),
        sa.Column("error_type", sa.String(length=255), nullable=True),
        sa.Column("state", sa.String(length=20), server_default="open", nullable=False),
        sa.Column("state_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state_by", sa.Text(), nullable=True),
        sa.Column("state_reason", sa.Text(), nullable=True),
        sa.Column("state_release", sa.String(length=255), nullable=True),
        sa.Column("ignored_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ignored_until_count", sa.BigInteger(), nullable=True),
        sa.Column("muted_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("merged_into", sa.BigInteger(), nullable=True),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("letters", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("returned", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("regressions", sa.Integer(), server_default="0", nullable=False),
        sa.Column("sample_letter_id", sa.BigInteger(), nullable=True),
        sa.Column("tasks", sa.Text(), server_default="[]", nullable=False),
        sa.Column("queues", sa.Text(), server_default="[]", nullable=False),
        sa.Column("releases", sa.Text(), server_default="[]", nullable=False),
        sa.Column("window_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("window_letters", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("usual_letters", sa.Float(), server_default="0", nullable=False),
        sa.Column("grown_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("spoke_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("spoke_letters", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("follow_up_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_failure_groups")),
        sa.UniqueConstraint("digest", name=op.f("uq_failure_groups_digest")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_failure_groups_first_seen_at", "failure_groups", ["first_seen_at"], unique=False)
    op.create_index(
        "ix_failure_groups_follow_up_at",
        "failure_groups",
        ["follow_up_at"],
        unique=False,
        postgresql_where=sa.text("follow_up_at IS NOT NULL"),
        sqlite_where=sa.text("follow_up_at IS NOT NULL"),
    )
    op.create_index("ix_failure_groups_state_last_seen_at", "failure_groups", ["state", "last_seen_at"], unique=False)
    op.create_table(
        "group_hours",
        sa.Column("group_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("letters", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("group_id", "hour", name=op.f("pk_group_hours")),
    )
    op.create_index("ix_group_hours_hour", "group_hours", ["hour"], unique=False)
    op.create_table(
        "alert_deliveries",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("alert_id", sa.BigInteger(), nullable=False),
        sa.Column("channel", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["alert_id"], ["alerts.id"], name=op.f("fk_alert_deliveries_alert_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_deliveries")),
        sa.UniqueConstraint("alert_id", "channel", name=op.f("uq_alert_deliveries_alert_id_channel")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_alert_deliveries_state_channel_due_at", "alert_deliveries", ["state", "channel", "due_at"], unique=False
    )
