"""A store in S3 or what speaks its protocol: the same names, each an object, which appears whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from busbw.errors import InputError
from busbw.observations.store.layout import RUN_ID

__all__ = ["ObjectPlace", "is_object_url"]

_ENDPOINTS = ("BUSBW_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Where the service is, if not at Amazon; the first that is set counts. Source of the last two: AWS SDKs and Tools Reference Guide,
"Service-specific endpoints"."""
_CONNECT_S, _REQUEST_S = 10.0, 60.0


def is_object_url(text: object) -> bool:
    """Whether a store is written as the address of an object store.

    >>> is_object_url("s3://bench/lab"), is_object_url("lab"), is_object_url("C:lab")
    (True, False, False)
    """
    return isinstance(text, str) and re.match(r"[a-z][a-z0-9+.-]+://", text) is not None


class ObjectPlace:
    """The root of a store in a bucket. Reads and lists are as fresh as the service's, which for S3 is strongly consistent (since 2020).

    An object can be written over, so that `create` is a look and a write, not one step: it is used for `run.json` alone, where
    whoever is second writes nearly the same.
    """

    threads = 16

    def __init__(self, url: str) -> None:
        self.shown = url.rstrip("/")
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or parts.username:
            raise InputError(
                f"{url}: object stores are written s3://BUCKET/PREFIX; keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws, "
                f"another service's address from {_ENDPOINTS[0]}."
            )
        self._bucket = parts.netloc
        self._root = "/".join([parts.netloc, *(part for part in parts.path.split("/") if part)])
        self._files = _file_system(url)
        self._listed: dict[str, list[str]] = {}

    @property
    def file_system(self) -> Any:
        """pyarrow's, for `path`."""
        return self._files

    def path(self, run: str, name: str) -> str:
        """A file, as the file system names it."""
        return f"{self._root}/{run}/{name}"

    def runs(self) -> list[str]:
        """Folders that are named like a run, sorted. Raises InputError if the bucket cannot be listed."""
        self._listed = {}
        for path in self._list(self._root):
            run, _, name = path.removeprefix(f"{self._root}/").partition("/")
            if RUN_ID.fullmatch(run) and name and "/" not in name:
                self._listed.setdefault(run, []).append(name)
        return sorted(self._listed)

    def names(self, run: str) -> list[str]:
        """Files of a run; none if it isn't there. What `runs` has just listed is used once."""
        known = self._listed.pop(run, None)
        if known is not None:
            return known
        folder = f"{self._root}/{run}"
        return [path.removeprefix(f"{folder}/") for path in self._list(folder)]

    def _list(self, folder: str) -> list[str]:
        from pyarrow import fs  # noqa: PLC0415 - loads the client of S3

        try:
            found = self._files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
            if not found and self._files.get_file_info(self._bucket).type == fs.FileType.NotFound:
                raise InputError(f"{self.shown}: there is no bucket {self._bucket}. Make it, or give another --store.")
        except OSError as error:
            raise InputError(
                f"{self.shown}: cannot read the store: {_told(error)}. Check the address ({_ENDPOINTS[0]}), the keys and the network."
            ) from error
        return [info.path for info in found if info.type == fs.FileType.File]

    def read(self, run: str, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, OSError."""
        with self._files.open_input_file(self.path(run, name)) as stream:
            return bytes(stream.read())

    def write(self, run: str, files: Mapping[str, bytes | memoryview]) -> None:
        """Returns once all files are there for good; each appears whole, and in this order. Raises OSError."""
        for name, content in files.items():
            with self._files.open_output_stream(self.path(run, name)) as stream:
                stream.write(content)

    def create(self, run: str, name: str, content: bytes) -> bool:
        """The same for one file, unless the name exists: whether it did not. Raises OSError."""
        from pyarrow import fs  # noqa: PLC0415

        if self._files.get_file_info(self.path(run, name)).type != fs.FileType.NotFound:
            return False
        self.write(run, {name: content})
        return True

    def remove(self, run: str, names: Iterable[str]) -> None:
        """Removes files, if they are there. Raises OSError."""
        for name in names:
            self._files.delete_file(self.path(run, name))


def _file_system(url: str) -> Any:
    try:
        from pyarrow import fs  # noqa: PLC0415 - loads the client of S3

        s3 = fs.S3FileSystem
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{url}: this pyarrow was built without S3. Install the wheel: pip install pyarrow."
        ) from error
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    options: dict[str, Any] = {"connect_timeout": _CONNECT_S, "request_timeout": _REQUEST_S}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
            raise InputError(
                f"{endpoint}: the address of an S3 service is http(s)://HOST:PORT. Mend {', '.join(_ENDPOINTS)}."
            )
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme, "region": region or "us-east-1"}
    elif region:
        options["region"] = region
    try:
        return s3(**options)
    except (OSError, ValueError) as error:
        raise InputError(f"{url}: the object store cannot be used: {_told(error)}.") from error


def _told(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")
