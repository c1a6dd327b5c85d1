"""A server of S3 (moto's) in this process, and what its users need in their environment."""

import contextlib

import boto3
import pytest
from moto.server import ThreadedMotoServer

from jaxrl_agents.weights import places

BUCKET = "jaxrl"


@contextlib.contextmanager
def serving():
  """Serves an empty bucket; the environment of this process, and of those it starts, names it."""
  server = ThreadedMotoServer(port=0, verbose=False)
  server.start()
  host, port = server.get_host_and_port()
  url = f"http://{host}:{port}"
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    patch.setenv("AWS_ENDPOINT_URL_S3", url)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=BUCKET)
    places._opened.cache_clear()
    try:
      yield
    finally:
      places._opened.cache_clear()
      server.stop()
