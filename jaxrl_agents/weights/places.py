"""Where versions of the weights lie: a folder of a disk, or a prefix of a bucket.

A bucket is named by gs://BUCKET/PREFIX (Google Cloud Storage) or s3://BUCKET/PREFIX (Amazon S3 and
what speaks as it does) and is read and written by tensorstore's drivers. A file of a bucket is seen
whole or not at all, and at once by all who look, as one of a disk that was renamed.

Credentials come from the surroundings of the process: of Google, the machine's service account or
GOOGLE_APPLICATION_CREDENTIALS; of S3, AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, AWS_PROFILE or
the machine's role, with the region in AWS_REGION, and another service than Amazon's in
AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import posixpath
import secrets
import shutil
import urllib.parse
from typing import Any

from jaxrl_agents import durable
from jaxrl_agents.weights import timeouts

DRIVERS = {"gs": "gcs", "s3": "s3"}
"""Scheme of a URL -> tensorstore's driver."""

DISK_POLL_S, BUCKET_POLL_S = 0.2, 5.0
"""Seconds between two looks for a file. Each look into a bucket costs money."""

TIMEOUT_S = 300.0
"""Longest wait for a bucket to list, write or delete small files; tensorstore tries again."""


class Bucket:
  """A file, or what begins with a prefix, of a bucket, with those methods of pathlib.Path that
  versions need.

  Attributes:
    url: "gs://BUCKET/KEY" or "s3://BUCKET/KEY", without a slash at its end.

  Raises:
    ValueError: the URL names no bucket and prefix.
  """

  def __init__(self, url: str):
    parts = urllib.parse.urlsplit(url.rstrip("/"))
    key = parts.path.lstrip("/")
    if parts.scheme not in DRIVERS or not parts.netloc or not key or parts.query or parts.fragment:
      raise ValueError(
        f"{url!r} names no place in a bucket; write gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"
      )
    self.url = f"{parts.scheme}://{parts.netloc}/{key}"
    self._scheme, self._bucket, self._key = parts.scheme, parts.netloc, key

  def __str__(self) -> str:
    return self.url

  def __repr__(self) -> str:
    return f"Bucket({self.url!r})"

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Bucket) and self.url == other.url

  def __hash__(self) -> int:
    return hash(self.url)

  def __truediv__(self, name: str) -> Bucket:
    return Bucket(f"{self.url}/{name}")

  def __reduce__(self) -> tuple[Any, ...]:
    return Bucket, (self.url,)

  @property
  def parent(self) -> Bucket:
    return Bucket(posixpath.dirname(self.url))

  def absolute(self) -> Bucket:
    return self

  def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
    """Nothing: a prefix needs not be made."""

  def exists(self) -> bool:
    """Whether there is a file of this key."""
    return bool(self._listed(self._key, self._key + "\0"))

  def read_bytes(self) -> bytes:
    """Raises FileNotFoundError: there is no file of this key."""
    found = timeouts.result(self._store.read(self._key), self, TIMEOUT_S)
    if found.state != "value":
      error = FileNotFoundError(f"there is no {self}")
      error.filename = self.url
      raise error
    return found.value

  def write_text(self, text: str, encoding: str = "utf-8") -> None:
    timeouts.result(self._store.write(self._key, text.encode(encoding)), self, TIMEOUT_S)

  def write_if_absent(self, text: str) -> None:
    """Writes a file where there is none, as far as the service has such conditions."""
    missing = timeouts.result(self._store.read(self._key), self, TIMEOUT_S)
    if missing.state == "missing":
      generation = missing.stamp.generation
      written = self._store.write(self._key, text.encode(), if_equal=generation)
      timeouts.result(written, self, TIMEOUT_S)

  def unlink(self, *, missing_ok: bool = False) -> None:
    """Deletes the file; in a bucket it is no error if there is none."""
    timeouts.result(self._store.write(self._key, None), self, TIMEOUT_S)

  def names(self, first: str) -> list[str]:
    """Names of the files and prefixes below this one that begin with `first`, sorted."""
    base = f"{self._key}/"
    keys = self._listed(base + first, _after(base + first))
    found = {key[len(base) :].split("/", 1)[0] for key in keys}
    return sorted(found - {""})  # a console makes a file of this name for an empty folder

  def delete_all(self) -> None:
    """Deletes all files below the prefix."""
    base = f"{self._key}/"
    deleted = [self._store.write(key, None) for key in self._listed(base, _after(base))]
    for each in deleted:
      timeouts.result(each, self, TIMEOUT_S)

  def spec(self) -> dict[str, Any]:
    """The prefix, for tensorstore."""
    return _spec(self._scheme, self._bucket, f"{self._key}/")

  @property
  def _store(self) -> Any:
    return _opened(self._scheme, self._bucket)

  def _listed(self, first: str, end: str) -> list[str]:
    """Keys from `first` on, before `end`; some servers list more than they are asked for."""
    import tensorstore as ts  # here, such that manifests on a disk are read without it

    found = self._store.list(ts.KvStore.KeyRange(first, end))
    keys = [key.decode() for key in timeouts.result(found, self, TIMEOUT_S)]
    return [key for key in keys if first <= key < end]


Place = pathlib.Path | Bucket
Folder = str | pathlib.Path | Bucket


def of(folder: Folder) -> Place:
  """The place that a path or a URL names.

  Raises:
    ValueError: a URL of a scheme that is not known, or without a bucket and a prefix.
  """
  if isinstance(folder, str) and "://" in folder:
    return Bucket(folder)
  return folder if isinstance(folder, Bucket) else pathlib.Path(folder)


def write_durably(place: Place, text: str) -> None:
  """Writes a file at once and durably: others see all of it, or what was there before."""
  if isinstance(place, Bucket):
    place.write_text(text)
    return
  partial = place.with_suffix(f".{os.getpid()}.tmp")
  with open(partial, "w", encoding="utf-8") as f:
    f.write(text)
  durable.replace(partial, place)


def write_if_absent(place: Place, text: str) -> None:
  """Writes a file at once and durably where there is none. Of several that do, one succeeds."""
  if isinstance(place, Bucket):
    place.write_if_absent(text)
    return
  mine = place.with_name(f".{place.name}.{secrets.token_hex(8)}.tmp")
  mine.write_text(text, encoding="utf-8")
  durable.sync(mine)
  with contextlib.suppress(FileExistsError):
    os.link(mine, place)
  mine.unlink()
  durable.sync(place.parent)


def names(folder: Place, first: str) -> list[str]:
  """Names of what lies in a folder and begins with `first`, sorted; none if there is no folder."""
  if isinstance(folder, Bucket):
    return folder.names(first)
  if not folder.is_dir():
    return []
  return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith(first))


def remove_tree(folder: Place) -> None:
  """Deletes a folder with all that it holds; nothing if there is none."""
  if isinstance(folder, Bucket):
    folder.delete_all()
  else:
    shutil.rmtree(folder, ignore_errors=True)


def kvstore(folder: Place) -> dict[str, Any]:
  """tensorstore's spec of a folder."""
  if isinstance(folder, Bucket):
    return folder.spec()
  return {"driver": "file", "path": f"{folder}/"}


def stored_bytes(folder: Place) -> int:
  """Bytes of the files of a folder of a disk."""
  total = 0
  if not isinstance(folder, Bucket):
    for path in folder.rglob("*"):
      with contextlib.suppress(FileNotFoundError):  # of one that is written, locks come and go
        total += path.stat().st_size if path.is_file() else 0
  return total


def sent_bytes(bucket: Bucket) -> int:
  """Bytes that this process has written to buckets of that kind."""
  import tensorstore as ts

  name = f"/tensorstore/kvstore/{bucket.spec()['driver']}/bytes_written"
  found = ts.experimental_collect_matching_metrics(name)
  return sum(int(value["value"]) for metric in found for value in metric["values"])


def poll_s(folder: Folder) -> float:
  """Seconds between two looks for a file that another process may write."""
  return BUCKET_POLL_S if isinstance(of(folder), Bucket) else DISK_POLL_S


@functools.cache
def _opened(scheme: str, bucket: str) -> Any:
  """A whole bucket, opened once by a process."""
  import tensorstore as ts

  url = f"{scheme}://{bucket}"
  return timeouts.result(ts.KvStore.open(_spec(scheme, bucket, "")), url, TIMEOUT_S)


def _spec(scheme: str, bucket: str, path: str) -> dict[str, Any]:
  spec: dict[str, Any] = {"driver": DRIVERS[scheme], "bucket": bucket, "path": path}
  if scheme == "s3":
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
      spec |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    elif region:
      spec["aws_region"] = region
  return spec


def _after(prefix: str) -> str:
  """The first key behind all that begin with a prefix."""
  return prefix[:-1] + chr(ord(prefix[-1]) + 1)
