"""Package of the job for a cluster: one zip for --py-files, and the script that spark-submit starts.

Separate module: commands write the package on machines without Spark.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

from kafka_ratchet.spark_sink.errors import OptionRefused

SCRIPT = "sink_job.py"
"""Name of the script: spark-submit starts a file and not a zip. It is not spark_sink.py, which would hide the package
from the script."""

BEGINNING = (1980, 1, 1, 0, 0, 0)
"""Earliest time that a zip can store. All entries have it, so that the same source gives the same bytes."""

READABLE = 0o100644 << 16
"""Mode of a plain file for all users to read, in a zip's bits for Unix modes."""


def write_package(path: Path) -> str:
    """Write the package into a zip, and `sink_job.py` next to the zip.

    Args:
        path: path of the zip, which is replaced if it exists; spark-submit accepts only names that end with .zip.

    Returns:
        SHA-256 of the zip in hexadecimal digits; the same source gives the same digest on every machine.

    Raises:
        OptionRefused: the name does not end with .zip, or the folder cannot be written.
    """
    if path.suffix != ".zip":
        raise OptionRefused(f"{path}: spark-submit takes Python packages from files that end with .zip. Name one")
    package = Path(__file__).parents[1]
    rule = package.parent / "rule"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:  # releases of zlib differ in their output
        for module in [package.parent / "__init__.py", *sorted(rule.rglob("*.py")), *sorted(package.rglob("*.py"))]:
            entry = zipfile.ZipInfo(module.relative_to(package.parents[1]).as_posix(), BEGINNING)
            entry.create_system, entry.external_attr = 3, READABLE
            packed.writestr(entry, module.read_bytes())
    try:
        for target, content in ((path, archive.getvalue()), (path.with_name(SCRIPT), _script(package))):
            # Whole or not at all: a job may be starting from the existing file.
            partial = target.with_name(f".{target.name}.partial")
            partial.write_bytes(content)
            partial.replace(target)
    except OSError as error:
        raise OptionRefused(f"{path}: cannot be written ({error.strerror}). Choose another folder") from None
    return hashlib.sha256(archive.getvalue()).hexdigest()


def _script(package: Path) -> bytes:
    return (package / "__main__.py").read_bytes()
