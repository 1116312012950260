"""Keys to hand to outside services that have idempotency of their own, such as Stripe."""

from __future__ import annotations

import hashlib


def provider_key(task_name: str, key: str, step: str = "") -> str:
    """A key that is the same in every attempt and different for every task, caller's key and step.

    Short (services allow 255 characters or fewer) and without the caller's words, which may be private.
    """
    parts = f"{len(task_name)}:{task_name}{len(key)}:{key}{step}"
    return f"dlo-{hashlib.sha256(parts.encode()).hexdigest()[:40]}"
