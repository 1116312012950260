"""Calling the services of others over HTTP, as the example tasks do."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import httpx
from celery import Celery


def call(
    app: Celery, service: str, method: str, path: str, *, json: Any = None, key: str | None = None
) -> dict[str, Any]:
    """Call ``payments``, ``mail`` or ``crm`` and return the JSON answer.

    ``key`` is sent as the ``Idempotency-Key`` header. Raises httpx.HTTPStatusError for a status of 400 and more,
    httpx.TransportError where no answer came.
    """
    url = f"{app.conf[f'office_{service}_url']}{path}"
    headers = {"Idempotency-Key": key} if key else {}
    timeout = app.conf.office_http_timeout_seconds
    response = _client().request(method, url, json=json, headers=headers, timeout=timeout)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


@lru_cache
def _client() -> httpx.Client:
    """One client a process, made at its first call: a forked connection would be shared."""
    return httpx.Client()
