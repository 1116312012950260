"""Settings of our own Celery app, read from the environment once, by the entry point alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from broker_topology.errors import ConfigurationError


class WorkerSettings(BaseSettings):
    """What ``celery -A tasks worker`` reads from the environment; names are those of the fields, in capitals."""

    model_config = SettingsConfigDict(extra="ignore")

    amqp_url: str = "amqp://guest:guest@127.0.0.1:5672//"
    redis_url: str = "redis://127.0.0.1:6379/0"
    database_url: str = "sqlite:///tasks.db"
    """Where the example tasks keep their charges and the ledger of effects."""
    topology_file: Path = Path("definitions.json")
    task_modules: Annotated[tuple[str, ...], NoDecode] = ()
    """Modules with more tasks, separated by commas."""
    result_backend: str | None = None
    task_ignore_result: bool = True
    """False keeps results in the result backend."""
    release: str | None = None
    payments_url: str = "http://127.0.0.1:8081/payments"
    mail_url: str = "http://127.0.0.1:8081/mail"
    crm_url: str = "http://127.0.0.1:8081/crm"
    http_timeout_seconds: float = Field(default=10.0, gt=0)

    @field_validator("task_modules", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value


def read_settings() -> WorkerSettings:
    """Read the environment. Raises ConfigurationError, in one sentence."""
    try:
        return WorkerSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigurationError(f"{name}: {first['msg']}") from error
