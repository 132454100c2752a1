"""Apache Ivy, which pyspark ships: resolves jars with their dependencies, or fetches the jars of a lock file."""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from kafka_ratchet.app.local.fetch_display import FetchDisplay
from kafka_ratchet.app.local.java import SHORT_LIVED, find_java
from kafka_ratchet.errors import SetupError

SIDE_BY_SIDE: Final = 4
JARS_EACH: Final = 8
"""Number of jars for each Ivy process; up to SIDE_BY_SIDE processes share a longer list.

One Ivy waits for each answer before its next request, so several are quicker. The start of an Ivy process takes a
second of CPU time, which is too much for a few jars.
"""

BY_PATH: Final = """\
<ivysettings>
  <settings defaultResolver="default"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false" checksums=""/></resolvers>
  <include url="${ivy.default.settings.dir}/ivysettings-shared.xml"/>
  <include url="${ivy.default.settings.dir}/ivysettings-local.xml"/>
  <include url="${ivy.default.settings.dir}/ivysettings-main-chain.xml"/>
  <include url="${ivy.default.settings.dir}/ivysettings-default-chain.xml"/>
</ivysettings>
"""
"""Ivy's default settings, except for `usepoms` and `checksums`.

With these settings, Ivy reads no descriptions of modules, and no checksums, since the lock file has better ones. So it
sends one or two requests for each jar instead of ten or more.
"""

FILES: Final = "[artifact]-[revision](-[classifier]).[ext]"
MAVEN_PATHS: Final = f"[orgPath]/[module]/[revision]/{FILES}"

_one_at_a_time = threading.Lock()


def resolve_all(
    coordinates: Iterable[str], left_out: Iterable[str], downloads: Path, pattern: str, display: FetchDisplay
) -> None:
    """Fetch modules with all their dependencies.

    Args:
        coordinates: organisation:module:revision of each.
        left_out: organisation:module of dependencies to omit; * in place of a module omits all of the organisation.
        downloads: Ivy's cache folder.
        pattern: Ivy's pattern for the path of each fetched jar: `FILES` or `MAVEN_PATHS`, below a folder.
        display: display of the progress.

    Raises:
        SetupError: pyspark or Java is missing, or a jar could not be fetched.
    """
    module = ElementTree.Element("ivy-module", version="2.0")
    dependencies = _dependencies(module)
    for coordinate in coordinates:
        organisation, name, revision = coordinate.split(":")
        _depend(dependencies, organisation, name, revision)
    for excluded in left_out:
        organisation, name = excluded.split(":")
        named = {"org": organisation, "module": name}
        ElementTree.SubElement(dependencies, "exclude", {key: value for key, value in named.items() if value != "*"})
    _run(module, downloads, pattern, display)


def fetch(paths: Iterable[str], downloads: Path, target: Path, display: FetchDisplay) -> None:
    """Fetch the jars with these Maven paths, without dependencies, into the folder `target`; see `resolve_all`."""
    ordered = sorted(paths)
    shares = min(SIDE_BY_SIDE, -(-len(ordered) // JARS_EACH))

    def fetch_share(number: int) -> None:
        module = ElementTree.Element("ivy-module", version="2.0")
        dependencies = _dependencies(module)
        for path in ordered[number::shares]:
            *organisation, name, revision, _ = path.split("/")
            _depend(dependencies, ".".join(organisation), name, revision, alone=True)
        _run(module, downloads / str(number), f"{target}/{FILES}", display, BY_PATH)

    with ThreadPoolExecutor(shares) as beside:
        list(beside.map(fetch_share, range(shares)))


def _dependencies(module: ElementTree.Element) -> ElementTree.Element:
    ElementTree.SubElement(module, "info", organisation="ratchet", module="jars")
    ElementTree.SubElement(ElementTree.SubElement(module, "configurations"), "conf", name="default")
    return ElementTree.SubElement(module, "dependencies")


def _depend(within: ElementTree.Element, organisation: str, name: str, revision: str, *, alone: bool = False) -> None:
    module = {"org": organisation, "name": name, "rev": revision, "conf": "default->default"}
    ElementTree.SubElement(within, "dependency", module | ({"transitive": "false"} if alone else {}))


def _run(
    module: ElementTree.Element, downloads: Path, pattern: str, display: FetchDisplay, settings: str | None = None
) -> None:
    with tempfile.TemporaryDirectory(prefix="ratchet-ivy-") as scratch:
        description = Path(scratch, "ivy.xml")
        description.write_text(ElementTree.tostring(module, "unicode", xml_declaration=True), "utf-8")
        command = [str(find_java()), *SHORT_LIVED.split(), "-jar", str(_ivy()), "-cache", str(downloads)]
        if settings is not None:
            own = Path(scratch, "settings.xml")
            own.write_text(settings, "utf-8")
            command += ["-settings", str(own)]
        command += ["-ivy", str(description), "-confs", "default", "-retrieve", pattern]
        code, last_lines = _follow(command, display)
    if code:
        said = "\n  ".join(line for line in last_lines if line.strip())
        raise SetupError(
            "the jars could not be fetched from Maven Central (needed once; fetched ones are kept). Check the network "
            "and run the command again; behind a proxy set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=... "
            f"-Dhttps.proxyPort=...'. Ivy's last words:\n  {said}"
        )


def _follow(command: list[str], display: FetchDisplay) -> tuple[int, Sequence[str]]:
    """Run Ivy, and report its progress to the display; return its exit code, and the last lines of its output."""
    last_lines: deque[str] = deque(maxlen=12)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101 - asked for above
        for line in process.stdout:
            last_lines.append(line.rstrip())
            words = line.split()
            with _one_at_a_time:
                if words[:1] == ["found"]:
                    display.found(words[1])
                elif words[:2] == ["[SUCCESSFUL", "]"]:
                    display.fetched(words[2])
    return process.returncode, last_lines


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or []) if spec else []
    found = next((jar for place in places for jar in sorted(Path(place, "jars").glob("ivy-*.jar"))), None)
    if found is None:
        raise SetupError(
            "Kafka's and Spark's jars are fetched with Ivy, which comes with pyspark, and pyspark is not "
            "installed: pip install 'kafka-ratchet[spark]'. A command that needs no Spark can use a Kafka of yours "
            "instead: set bootstrap, or RATCHET_BOOTSTRAP"
        )
    return found
