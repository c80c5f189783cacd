"""A redis-py credential provider that hides the password.

redis-py's errors about Sentinels print all options of a connection.
"""

from __future__ import annotations

from redis import CredentialProvider


class HiddenPassword(CredentialProvider):
    """Authenticates as the default user of the server."""

    def __init__(self, password: str) -> None:
        self._password = password

    def get_credentials(self) -> tuple[str]:
        return (self._password,)

    async def get_credentials_async(self) -> tuple[str]:
        return self.get_credentials()

    def __repr__(self) -> str:
        return "<password>"
