"""Shared basics of every process: settings, errors, logging, queue names, Redis addresses, telemetry.

In: the environment.
Out: Settings, the errors of this package and helpers without state.
Public: settings.Settings, errors.StoreUnavailable, errors.FileStoreUnavailable, settings.get_settings,
errors.SettingsError, errors.JobNotFound.
"""
