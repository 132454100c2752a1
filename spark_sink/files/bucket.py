"""Folder of a table in a bucket of S3, or of another server with the protocol of S3."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.files.local import FileInfo, LocalFolder

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

OPTIONS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL")
"""Options that delta-rs, pyarrow and pyiceberg all understand. Each library looks for a missing option in the usual
places: variables of these names, files in ~/.aws, the role of the machine."""

URL = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<key>[A-Za-z0-9_=.-]+(/[A-Za-z0-9_=.-]+)*)/?")
"""Pattern of a folder in a bucket, with characters that no library quotes or decodes."""


@dataclass(frozen=True)
class Bucket:
    """Access options of an S3 bucket: keys, region and endpoint."""

    options: Mapping[str, str] = field(repr=False)
    """Values of the options; the names are those of `OPTIONS`, in capitals."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Bucket:
        """Create the access options from a user's options, with names in upper or lower case.

        Raises:
            OptionRefused: an option is unknown.
        """
        for name in options:
            if name.upper() not in OPTIONS:
                raise OptionRefused(f"storage option {name!r} is unknown; write one of {', '.join(OPTIONS)}")
        return cls({name.upper(): value for name, value in options.items()})

    def for_delta(self) -> dict[str, str]:
        """Return the options for delta-rs, with the conditional put, which never replaces an existing log entry."""
        more = {"AWS_CONDITIONAL_PUT": "etag"}
        if (self.options.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http://"):
            more["AWS_ALLOW_HTTP"] = "true"
        return {**self.options, **more}

    def for_iceberg(self) -> dict[str, str]:
        """Return the options as properties of a pyiceberg catalog."""
        names = {
            "AWS_ACCESS_KEY_ID": "s3.access-key-id",
            "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
            "AWS_SESSION_TOKEN": "s3.session-token",
            "AWS_REGION": "s3.region",
            "AWS_ENDPOINT_URL": "s3.endpoint",
        }
        return {names[name]: value for name, value in self.options.items()}

    def filesystem(self) -> S3FileSystem:
        """Return pyarrow's file system, which is pickled and sent to Spark's tasks.

        It contains the keys of the options; without keys, each executor uses its own credentials. Region and endpoint
        come from the driver, because the executors' environment may lack them.
        """
        from pyarrow.fs import S3FileSystem

        given, known = self.options.get, os.environ.get
        return S3FileSystem(
            access_key=given("AWS_ACCESS_KEY_ID"),
            secret_key=given("AWS_SECRET_ACCESS_KEY"),
            session_token=given("AWS_SESSION_TOKEN"),
            region=given("AWS_REGION") or known("AWS_REGION") or known("AWS_DEFAULT_REGION"),
            endpoint_override=given("AWS_ENDPOINT_URL") or known("AWS_ENDPOINT_URL"),
        )


class BucketFolder:
    """Folder of a table in an S3 bucket, with the methods of `LocalFolder`.

    Args:
        url: s3://bucket/folder.
        options: access to the bucket, see `OPTIONS`.

    Raises:
        OptionRefused: the url or an option cannot be used.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        found = URL.fullmatch(url)
        if found is None or ".." in url:
            raise OptionRefused(
                f"path {url!r} is not usable: write s3://bucket/folder, the folder in letters, digits and any of _ "
                "= . - /"
            )
        self._bucket = Bucket.of(options)
        self.uri = f"s3://{found['bucket']}/{found['key']}"
        self._root = f"{found['bucket']}/{found['key']}"
        self.options: dict[str, str] | None = self._bucket.for_delta()
        self._filesystem: S3FileSystem | None = None

    def __str__(self) -> str:
        return self.uri

    @property
    def filesystem(self) -> Any:
        """Return pyarrow's file system for the paths that `inside` returns."""
        if self._filesystem is None:
            self._filesystem = self._bucket.filesystem()
        return self._filesystem

    def inside(self, *names: str) -> str:
        """Return the path of an entry of the folder, for use with `filesystem`."""
        return "/".join([self._root, *names])

    def make(self, *folders: str) -> None:
        """Do nothing: a bucket has no folders, only names."""

    def is_there(self) -> bool:
        """Return True if the folder has any entry."""
        from pyarrow.fs import FileType

        return bool(self.filesystem.get_file_info(self._root).type == FileType.Directory)

    def files(self, *folders: str) -> list[FileInfo]:
        return [
            FileInfo(info.base_name, info.size, info.mtime.timestamp())
            for info in self._listed(*folders)
            if info.is_file and info.base_name
        ]

    def folders(self, *folders: str) -> list[str]:
        return [info.base_name for info in self._listed(*folders) if not info.is_file]

    def read(self, name: str, *folders: str) -> bytes | None:
        try:
            with self.filesystem.open_input_stream(self.inside(*folders, name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        found = self.filesystem.get_file_info([self.inside(name) for name in names])
        return [info.size if info.is_file else None for info in found]

    def remove(self, name: str, *folders: str) -> None:
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(self.inside(*folders, name))

    def remove_folder(self, *folders: str) -> None:
        with suppress(OSError):
            self.filesystem.delete_dir(self.inside(*folders))

    def _listed(self, *folders: str) -> list[Any]:
        from pyarrow.fs import FileSelector

        found: list[Any] = self.filesystem.get_file_info(FileSelector(self.inside(*folders), allow_not_found=True))
        return found


Folder = LocalFolder | BucketFolder
