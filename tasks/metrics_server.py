"""A worker's metrics over HTTP, where its command line or environment asks for them."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import click
import structlog
from celery import Celery, bootsteps
from celery.exceptions import WorkerShutdown
from celery.worker import WorkController
from prometheus_client import start_http_server

from tasks.reliability import reliability_of

log = structlog.get_logger(__name__)


class ServeMetrics(bootsteps.StartStopStep):  # type: ignore[misc]
    """``/metrics`` over HTTP, in the worker's main process, where ``--metrics-port`` names a port."""

    requires: ClassVar[set[str]] = {"celery.worker.components:Pool"}

    def __init__(
        self,
        parent: WorkController,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        **options: Any,
    ) -> None:
        super().__init__(parent, **options)
        self._host, self._port = metrics_host, metrics_port or 0
        self.enabled = metrics_port is not None

    def start(self, parent: WorkController) -> None:
        """Listen. A port that is taken ends the worker with one sentence."""
        try:
            self._server, self._thread = start_http_server(
                self._port, self._host, registry=reliability_of(parent.app).metrics.registry
            )
        except (OSError, OverflowError) as error:
            problem = f"cannot listen on {self._host}:{self._port} for metrics: {error}"
            log.critical("worker.refuses_to_start", reason=problem)
            raise WorkerShutdown(os.EX_CONFIG) from error
        log.info("metrics.listening", host=self._host, port=self._server.server_port)

    def stop(self, parent: WorkController) -> None:
        """Stop listening."""
        del parent
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def offer_metrics(app: Celery) -> None:
    """Give the app's ``worker`` command the options ``--metrics-port`` and ``--metrics-host``."""
    app.steps["worker"].add(ServeMetrics)
    app.user_options["worker"].update(
        (
            click.Option(
                ("--metrics-port",),
                type=click.IntRange(0, 65535),
                envvar="METRICS_PORT",
                help="Serve /metrics for Prometheus on this port; 0 takes a free one.  [default: not served]",
            ),
            click.Option(
                ("--metrics-host",),
                default="127.0.0.1",
                show_default=True,
                envvar="METRICS_HOST",
                help="The address to serve /metrics on.",
            ),
        )
    )
