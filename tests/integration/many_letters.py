"""Many letters, made by the database itself: what a busy system has after a year."""

from __future__ import annotations

import sqlalchemy as sa

FILL = (
    """
    INSERT INTO failure_groups (digest, rules_version, title, task_name, error_type, state, state_at,
        first_seen_at, last_seen_at, letters, tasks, queues, releases)
    SELECT 'digest-' || n, 1, 'shop.GatewayError: refused ' || n, 'shop.task_' || n % 20, 'shop.Error' || n % 10,
        (ARRAY['open', 'settled', 'ignored'])[1 + n % 3], now(), now() - interval '90 days',
        now() - n * interval '1 minute', 10, '[]', '[]', '[]'
    FROM generate_series(1, :groups) AS n
    """,
    # Every 10th letter is open; the queue "quiet" and the task "shop.quiet" have none that is.
    """
    INSERT INTO dead_letters (identity, state, state_at, stored_at, died_at, task_name, task_id, args, kwargs,
        drained_queue, queue, exchange, routing_key, reason, body_bytes, body, properties, note_reason, error_type,
        error_message, traceback, release, group_id, replay_key)
    SELECT md5(n::text), CASE WHEN n % 10 = 0 THEN 'open' ELSE
            (ARRAY['settled', 'settled', 'settled', 'failed_again', 'discarded', 'replayed'])[1 + n % 6] END,
        now() - (:letters - n) * interval '30 seconds', now() - (:letters - n) * interval '30 seconds',
        now() - (:letters - n) * interval '30 seconds',
        CASE WHEN n % 10 = 1 THEN 'shop.quiet' ELSE 'shop.task_' || n % 19 END, 'task-' || n,
        '["order-' || n || '", ' || n % 1000 || ']', '{"currency": "EUR", "note": "' || md5(n::text) || '"}',
        'dead-letters', CASE WHEN n % 10 = 1 THEN 'quiet' ELSE 'queue-' || n % 5 END, 'work', 'key',
        CASE WHEN n % 10 = 1 THEN 'maxlen' ELSE (ARRAY['rejected', 'expired', 'delivery_limit'])[1 + n % 3] END,
        200, decode(repeat(md5(n::text), 6), 'hex'), decode(repeat(md5(n::text), 12), 'hex'), 'permanent',
        CASE WHEN n % 10 = 1 THEN 'shop.QuietError' ELSE 'shop.Error' || n % 9 END,
        'order ' || n || ' was refused', repeat('  File "shop.py", line 7 ', 20), '1.' || n % 7,
        CASE WHEN n % 2 = 0 THEN 1 ELSE 2 + n % (:groups - 1) END, CASE WHEN n % 20 = 3 THEN 'key-' || n END
    FROM generate_series(1, :letters) AS n
    """,
    """
    INSERT INTO replays (created_at, actor, reason, state, state_at, total)
    SELECT now(), 'ann', 'provider is back', 'published', now(), :letters / 200 FROM generate_series(1, 20)
    """,
    """
    INSERT INTO replay_items (replay_id, letter_id, key, state)
    SELECT 1 + n % 20, n, md5('item' || n), (ARRAY['succeeded', 'succeeded', 'failed_again', 'refused'])[1 + n % 4]
    FROM generate_series(1, :letters / 10) AS n
    """,
    """
    INSERT INTO audit_log (at, actor, action, reason, letter_id, group_id)
    SELECT now(), 'ann', 'replay', 'provider is back', n, NULL FROM generate_series(1, :letters / 10) AS n
    """,
    """
    INSERT INTO group_hours (group_id, hour, letters)
    SELECT g, date_trunc('hour', now()) - h * interval '1 hour', 5
    FROM generate_series(1, :groups / 20) AS g, generate_series(0, 719) AS h
    """,
    """
    INSERT INTO alerts (uid, about, kind, severity, group_id, at, payload)
    SELECT md5(n::text), 'about-' || n, 'first_occurrence', 'error', n, now(), '{}'
    FROM generate_series(1, :groups) AS n
    """,
    """
    INSERT INTO alert_deliveries (alert_id, channel, state, due_at)
    SELECT id, 'log', CASE WHEN id % 50 = 0 THEN 'waiting' ELSE 'sent' END, now() FROM alerts
    """,
)


def fill(engine: sa.Engine, *, letters: int, groups: int) -> None:
    """Fill an empty PostgreSQL database, and let it gather statistics."""
    with engine.begin() as connection:
        for statement in FILL:
            # As literals: the driver's parameters have no type in a SELECT.
            text = statement.replace(":letters", str(letters)).replace(":groups", str(groups))
            connection.exec_driver_sql(text.replace("%", "%%"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
