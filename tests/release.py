"""Look at what `./ratchet release` has built: names, metadata, and the page that an index shows."""

from __future__ import annotations

import email
import hashlib
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

REQUIRED = ("Metadata-Version", "Name", "Version", "Summary", "Requires-Python", "License-Expression")


def metadata_of(path: Path) -> Message:
    """Return the metadata of a wheel or an sdist."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            name = next(each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
            return email.message_from_bytes(wheel.read(name))
    with tarfile.open(path) as sdist:
        name = next(each for each in sdist.getnames() if each.count("/") == 1 and each.endswith("/PKG-INFO"))
        file = sdist.extractfile(name)
        assert file is not None
        return email.message_from_bytes(file.read())


def problems(folder: Path, version: str) -> list[str]:
    """Return what is wrong with the files of a release, a line each."""
    files = sorted(folder.iterdir())
    expected = {f"kafka_ratchet-{version}-py3-none-any.whl", f"kafka_ratchet-{version}.tar.gz"}
    found = [f"{folder} has {sorted(each.name for each in files)}"] if {each.name for each in files} != expected else []
    for path in files:
        about = metadata_of(path)
        found += [f"{path.name}: {field} is missing" for field in REQUIRED if not about[field]]
        if about["Version"] != version:
            found.append(f"{path.name}: version {about['Version']}")
        if not str(about["Description-Content-Type"]).startswith("text/markdown"):
            found.append(f"{path.name}: the page's type is {about['Description-Content-Type']}, not Markdown")
        if not str(about.get_payload()).strip():
            found.append(f"{path.name}: the page is empty")
    return found


def main() -> int:
    folder, version = Path(sys.argv[1]), sys.argv[2]
    found = problems(folder, version)
    for line in found:
        print(line, file=sys.stderr)
    for path in sorted(folder.iterdir()):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
