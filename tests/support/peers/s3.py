"""A real S3 server for tests, in a thread: moto's, which keeps everything in memory."""

from __future__ import annotations

import uuid


class S3Server:
    """Started at once. `env` leads any process to it."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer  # a second, for each process that collects tests

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.env = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def new_bucket(self) -> str:
        """The name of a fresh one."""
        import boto3

        name = f"b{uuid.uuid4().hex}"
        client = boto3.client(
            "s3",
            endpoint_url=self.env["AWS_ENDPOINT_URL"],
            region_name=self.env["AWS_DEFAULT_REGION"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        client.create_bucket(Bucket=name)
        client.close()
        return name

    def stop(self) -> None:
        self._server.stop()
