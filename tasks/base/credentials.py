"""A password for redis-py that no text shows: errors of its Sentinels list all options of a connection."""

from __future__ import annotations

from redis import CredentialProvider


class HiddenPassword(CredentialProvider):
    """Of the user that a server takes where none is named."""

    def __init__(self, password: str) -> None:
        self._password = password

    def get_credentials(self) -> tuple[str]:
        return (self._password,)

    async def get_credentials_async(self) -> tuple[str]:
        return self.get_credentials()

    def __repr__(self) -> str:
        return "<password>"
