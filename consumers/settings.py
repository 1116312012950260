"""Settings of the drain and its commands, read once from the environment or a ``.env`` file."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from broker_topology.errors import ConfigurationError

SECRET_PARTS = ("password", "secret", "key", "alert_urls")


class Settings(BaseSettings):
    """What ``dead-letters`` reads from the environment; every name is that of the variable."""

    model_config = SettingsConfigDict(env_file=".env", extra="ignore", env_ignore_empty=True)

    amqp_url: str = Field(default="amqp://guest:guest@127.0.0.1:5672/", description="The broker")
    database_url: str = Field(default="sqlite:///dead-letters.db", description="Where letters are stored")
    redis_url: str | None = Field(default=None, description="Where workers leave their notes; optional")
    topology_file: Path = Field(default=Path("definitions.json"), description="The definitions of the topology")
    drain_prefetch: int = Field(default=4000, ge=1, le=65535, description="Letters in hand at most, each queue")
    drain_held_bytes: int = Field(
        default=16 * 2**20, ge=1, description="Bytes of letters in hand, each queue; large letters mean fewer"
    )
    drain_max_decoded_bytes: int = Field(
        default=16 * 2**20, ge=0, description="A larger body is stored but not decoded"
    )
    drain_stop_seconds: float = Field(default=20.0, gt=0, description="Time to finish the batch in hand")
    health_host: str = Field(default="127.0.0.1", description="Where /livez, /readyz and /metrics are")
    health_port: int | None = Field(
        default=None, ge=0, le=65535, description="Its port; 9808 or a free one by default, 0 for a free one"
    )
    alerts_file: Path | None = Field(default=None, description="Who hears which alert: a TOML file; optional")
    alert_urls: str | None = Field(default=None, description="Apprise addresses that hear every alert; optional")
    mask_names: str | None = Field(
        default=None, description="Further words in names whose values are masked when shown, separated by commas"
    )
    mask_pattern: str | None = Field(default=None, description="A further regular expression of what is masked")
    encryption_keys: SecretStr | None = Field(
        default=None, description="Fernet keys that letters are encrypted with at rest, newest first; optional"
    )
    encryption_keys_file: Path | None = Field(default=None, description="A file with these keys instead")
    encrypt_letters: bool | None = Field(
        default=None, description="Whether new letters are encrypted; by default where there are keys"
    )
    log_format: str = Field(default="auto", pattern="^(auto|json|text)$", description="auto, json or text")
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$", description="Least severe level")

    @field_validator("log_format", "log_level", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value


def read_settings() -> Settings:
    """Read the settings. Raises ConfigurationError in one sentence."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).upper() if first["loc"] else "a setting"
        raise ConfigurationError(f"{name} is wrong: {first['msg']}") from error


def effective(settings: Settings) -> list[tuple[str, str, str]]:
    """Each setting as (variable, value with secrets hidden, meaning)."""
    shown = []
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        text = "" if value is None else str(value)
        if text and any(part in name for part in SECRET_PARTS) and not isinstance(value, Path):
            text = HIDDEN
        shown.append((name.upper(), _PASSWORD.sub(rf"\1{HIDDEN}@", text), field.description or ""))
    return shown


HIDDEN = "***"
_PASSWORD = re.compile(r"(://[^/@\s]*?:)[^/\s]*@")
