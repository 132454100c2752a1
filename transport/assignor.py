"""Faust's assignor for a group of members with the same rules.

Kafka admits a member only with a protocol that all members offer. The name of Ratchet's protocol contains a digest of
the rules, so Kafka itself refuses a worker with other rules. The metadata of each member contains the member's rules. A
refused worker reads these rules to name the differences (docs/decisions/0024-one-set-of-rules-in-a-group.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final, cast

from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from faust.assignor.client_assignment import ClientMetadata
from faust.assignor.partition_assignor import PartitionAssignor

RULES: Final = "rules"
"""Key of the rules in a member's JSON metadata. The value is an object with the text of each setting."""
DIGITS: Final = 12
"""Number of hexadecimal digits of the rules' digest in the protocol name.

Two different sets of rules have the same digest with a probability of 10^-14; then no worker is refused.
"""


def protocol_of(rules: Mapping[str, str]) -> str:
    """Return the name of the group protocol for these rules, the settings on which all members must agree."""
    text = json.dumps(dict(rules), sort_keys=True, separators=(",", ":"))
    return f"ratchet-{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


def is_worker(member_metadata: bytes) -> bool:
    """Return True if a worker, of this version or an earlier one, wrote a group member's metadata."""
    try:
        data = json.loads(ConsumerProtocolMemberMetadata.decode(member_metadata).user_data)
        return isinstance(data, dict) and (RULES in data or "changelog_distribution" in data)
    except Exception:  # whatever another client has written there
        return False


class RuledAssignor(PartitionAssignor):  # type: ignore[misc]  # Faust has no types
    """Assignor for members with the same rules; for `faust.App(PartitionAssignor=RuledAssignor.of(rules))`."""

    rules: ClassVar[dict[str, str]] = {}

    @classmethod
    def of(cls, rules: Mapping[str, str]) -> type[RuledAssignor]:
        """Return the assignor class for a group with these rules (settings)."""
        return cast("type[RuledAssignor]", type(cls.__name__, (cls,), {"rules": dict(rules)}))

    @property
    def name(self) -> str:
        """Return the name of the group protocol, which contains a digest of the rules."""
        return protocol_of(self.rules)

    def metadata(self, topics: Any) -> ConsumerProtocolMemberMetadata:
        """Return Faust's metadata of this member, with the rules added."""
        theirs = super().metadata(topics)
        data = {**json.loads(theirs.user_data), RULES: self.rules}
        return ConsumerProtocolMemberMetadata(
            theirs.version, theirs.subscription, json.dumps(data, separators=(",", ":")).encode()
        )

    @classmethod
    def _get_client_metadata(cls, metadata: Any) -> ClientMetadata:
        data = json.loads(metadata.user_data)
        data.pop(RULES, None)
        return cast(ClientMetadata, ClientMetadata.loads(json.dumps(data).encode()))
