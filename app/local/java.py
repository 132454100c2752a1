"""Search for a Java new enough for Kafka and Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from kafka_ratchet.errors import SetupError

OLDEST_JAVA = 17
"""Oldest feature release of Java that Kafka 4 brokers and Spark 4 run on."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a JVM with seconds of work: without the second compiler, which would take longer than it saves."""

INSTALL_JAVA = (
    "Install one: 'apt install openjdk-17-jre-headless' (Debian, Ubuntu), 'dnf install java-21-openjdk-headless' "
    "(Fedora) or 'brew install openjdk@17' (macOS), or let JAVA_HOME point to one"
)


def find_java() -> Path:
    """Return the `java` of JAVA_HOME, else the first on PATH.

    Raises:
        SetupError: no Java is found, it does not run, or it is older than `OLDEST_JAVA`.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not os.access(found, os.X_OK):
        where = f"in JAVA_HOME ({home})" if home else "on PATH"
        raise SetupError(f"there is no Java {where}; Kafka and Spark need Java {OLDEST_JAVA} or newer. {INSTALL_JAVA}")
    version = java_version(found)
    if version < OLDEST_JAVA:
        raise SetupError(f"{found} is Java {version}; Kafka and Spark need {OLDEST_JAVA} or newer. {INSTALL_JAVA}")
    return Path(found)


def java_version(java: str) -> int:
    """Return the feature release of the program `java`: 17 for "17.0.15", 8 for "1.8.0_412".

    Raises:
        SetupError: Java does not run, or does not report its version.
    """
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"{java} does not run ({error}). {INSTALL_JAVA}") from error
    said = answer.stderr + answer.stdout
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    if match is None:
        raise SetupError(f"{java} printed no version of Java, but {said.strip()[:200]!r}. {INSTALL_JAVA}")
    return int(match[1])
