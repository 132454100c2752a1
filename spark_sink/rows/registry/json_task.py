"""Validation of payloads by their JSON Schema, in the executors.

Separate module: pyspark sends it by value. Executors need jsonschema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any


def validators(schemas: Mapping[Any, tuple[Any, Mapping[str, Any]]]) -> dict[Any, Callable[[bytes], bool]]:
    """Return validators by schema key, which work like confluent-kafka's deserializer but fetch no references.

    Args:
        schemas: schemas by key, each with the schemas it refers to, by name.
    """
    try:
        from jsonschema.validators import validator_for
        from referencing import Registry, Resource
        from referencing.jsonschema import DRAFT7
    except ImportError:
        raise RuntimeError(
            "an executor lacks the package jsonschema, which checks values against their JSON Schema: pip install "
            "'kafka-ratchet[registry]' on its machine, or jsonschema alone"
        ) from None

    found = {}
    for key, (schema, named) in schemas.items():
        resources = [(name, Resource.from_contents(each, default_specification=DRAFT7)) for name, each in named.items()]
        made = validator_for(schema)(schema, registry=Registry().with_resources(resources))
        found[key] = _validator(made)
    return found


def _validator(made: Any) -> Callable[[bytes], bool]:
    from referencing.exceptions import Unresolvable

    def valid(payload: bytes) -> bool:
        try:
            return bool(made.is_valid(json.loads(payload)))
        except (ValueError, TypeError, RecursionError, ArithmeticError, re.error, Unresolvable):
            return False

    return valid
