"""What the log says of a batch that was stored; which failures are new, the alerts say."""

from __future__ import annotations

import structlog

from consumers.storing import Stored

log = structlog.get_logger()


def announce(stored: Stored) -> None:
    """Log the batch."""
    if stored.new or stored.refused:
        log.info(
            "dead_letters.stored",
            new=len(stored.new),
            known_before=stored.known,
            refused=len(stored.refused),
        )
