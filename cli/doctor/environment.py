"""Checks of the settings: invalid values, variables without effect, surprises in .env."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

from cli.base.errors import CliError
from cli.doctor.findings import Finding, fail, ok, warn
from tasks.base.errors import SettingsError, StoreUnavailable
from tasks.base.setting_names import ENV_FILE, ENV_PREFIX, env_file, unknown_names
from tasks.base.settings import Settings, get_settings

OURS = {ENV_PREFIX + name.upper() for name in Settings.model_fields}


def settings_or_findings() -> tuple[Settings, list[Finding]]:
    """The settings, or if they are invalid the defaults, so that the other checks can run; and findings."""
    try:
        get_settings.cache_clear()
        return get_settings(), [ok("settings", "all are valid")]
    except SettingsError as error:
        mend = "correct it in the environment or in .env; docs/reference/settings.md lists the settings"
        found = [fail("settings", line, mend) for line in str(error).split("; MEDUSAQ_")]
        found = [found[0], *(fail("settings", f"MEDUSAQ_{each.what}", mend) for each in found[1:])]
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    return Settings.model_construct(None, **defaults), found


def bind(settings: Settings) -> Iterator[Finding]:
    """Whether the gateway may start on its address."""
    from tasks.store.api_keys import check_keys

    try:
        check_keys(settings)
    except SettingsError as error:
        what, _, mend = str(error).partition("; ")
        yield fail("address", what, mend)
    except StoreUnavailable:
        what = f"{settings.reached_at} is reachable from other machines, and Redis does not say if keys exist"
        yield warn("address", what, "look again while Redis runs: without keys the gateway would not start")
    else:
        yield ok("address", f"the gateway may listen on {settings.host}")


def bind_flower(settings: Settings) -> Iterator[Finding]:
    """Whether Flower, if installed, may start on its address."""
    if importlib.util.find_spec("flower") is None:
        return
    from cli.stack.services import check_flower_guarded

    try:
        check_flower_guarded(settings)
    except CliError as error:
        what, _, mend = str(error).partition("; ")
        yield warn("address of flower", what, mend)
    else:
        yield ok("address of flower", f"Flower may listen on {settings.host}")


def variables() -> Iterator[Finding]:
    """Unknown variables, and values of .env that the environment overrides."""
    try:
        from_file, unknown = env_file(), unknown_names(Settings.model_fields)
    except (OSError, UnicodeDecodeError) as error:
        what = f".env cannot be read: {error}"
        yield fail("variables", what, "make it readable, as UTF-8 text, for the user that runs this")
        return
    for one in unknown:
        yield warn("variables", f"{one.name} in {one.place} is no setting and has no effect", one.hint)
    surprises = len(unknown)
    upper = {name.upper(): value for name, value in os.environ.items()}
    for name, value in sorted(from_file.items()):
        if name.upper() in OURS and upper.get(name.upper(), value) != value:
            what = f"{name.upper()} in .env has no effect: the environment has another value"
            yield warn(
                "variables", what, f"unset {name.upper()}, or remove the line from {ENV_FILE.absolute()}"
            )
            surprises += 1
    if not surprises:
        read = f", with those of {ENV_FILE.absolute()}" if from_file else ""
        yield ok("variables", f"every MEDUSAQ_ variable is a setting{read}")


def engine_settings(settings: Settings) -> Iterator[Finding]:
    """Combinations of settings that only the engine rejects."""
    from engine.tools.model_registry import Chosen
    from tasks.worker.engine_loader import engine_config

    try:
        engine_config(settings, Chosen(settings.model))
    except ValueError as error:
        yield fail(
            "settings", f"the engine refuses them: {error}", "change one of the two in the environment"
        )
