"""Tasks that only the demo and the tests need: the ways in which a worker dies."""

from __future__ import annotations

import os
import signal

from celery import shared_task


@shared_task(name="notifications.kill_own_worker")
def kill_own_worker() -> None:
    """End the process that runs this task, as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
