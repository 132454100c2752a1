"""docs/reference/settings.md says what there is, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from kafka_ratchet.app.settings import OTHER_VARIABLES, Settings, SinkSettings, StreamSettings, WebSettings, load
from tests.app.written_settings import written

pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def fields() -> Iterator[tuple[str, type[BaseModel], str]]:
    """Dotted name as the page writes it, model, field."""
    sections: dict[str, tuple[str, type[BaseModel]]] = {
        "streams": ("streams.NAME.", StreamSettings),
        "web": ("web.", WebSettings),
        "sink": ("sink.", SinkSettings),
    }
    for name in Settings.model_fields:
        if name in sections:
            prefix, model = sections[name]
            yield from ((f"{prefix}{field}", model, field) for field in model.model_fields)
        else:
            yield name, Settings, name


def shown(model: type[BaseModel], field: str) -> str:
    info = model.model_fields[field]
    if info.is_required():
        return "required"
    default = info.get_default(call_default_factory=True)
    if default is None or default == {}:
        return "default none"
    return f"default `{json.dumps(default)}`" if isinstance(default, bool | tuple) else f"default `{default}`"


@pytest.mark.parametrize(("name", "model", "field"), [pytest.param(*row, id=row[0]) for row in fields()])
def test_reference_has_the_setting_its_variable_and_its_default(name: str, model: type[BaseModel], field: str) -> None:
    variable = "RATCHET_" + name.replace(".", "__").upper() + ("__..." if name == "kafka" else "")
    entry = f"- `{name}`, `{variable}`, {shown(model, field)}: "
    assert entry in " ".join(REFERENCE.read_text("utf-8").split())


def test_reference_has_no_setting_that_does_not_exist() -> None:
    listed = re.findall(r"^- `([a-z][A-Za-z_.]*)`, ", REFERENCE.read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(name for name, _, _ in fields())


@pytest.mark.parametrize("variable", sorted(OTHER_VARIABLES))
def test_reference_has_the_other_variables(variable: str) -> None:
    assert f"\n- `{variable}`: " in REFERENCE.read_text("utf-8")


def test_example_of_the_reference_is_valid(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", REFERENCE.read_text("utf-8"), re.DOTALL)
    assert example
    settings = load(written(tmp_path, example[1]))
    assert settings.kafka["sasl.mechanism"] == "SCRAM-SHA-512"
    assert settings.stream()[1].output == "events-once"
