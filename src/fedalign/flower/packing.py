"""Sends a small message as one record.

Flower sends every record, array and piece of an array as an object with requests of its own: a message of ours has
about twenty. Packed it has one. The records inside, and so the receipts and the checks, stay the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedalign.errors import UserError

if TYPE_CHECKING:
    from flwr.app import RecordDict

PACKED = "packed"
MOST = 4 << 20  # bytes; Flower sends larger arrays in pieces


def pack(content: RecordDict) -> RecordDict:
    """Returns the records as one, or as they are if they are large."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.app import RecordDict as Records
    from flwr.common.serde import recorddict_to_proto

    arrays = [record for record in content.values() if isinstance(record, ArrayRecord)]
    if sum(len(array.data) for record in arrays for array in record.values()) > MOST:
        return content
    data = recorddict_to_proto(content).SerializeToString()
    return content if len(data) > MOST else Records({PACKED: ConfigRecord({PACKED: data})})


def is_packed(content: RecordDict) -> bool:
    return list(content) == [PACKED]


def unpack(content: RecordDict) -> RecordDict:
    """Returns the records of a packed message, and any other message as it is."""
    from flwr.common.serde import recorddict_from_proto
    from flwr.proto.recorddict_pb2 import RecordDict as Proto

    if not is_packed(content):
        return content
    data: Any = content[PACKED].get(PACKED)
    if not isinstance(data, bytes) or len(data) > MOST:
        raise UserError("its packed message cannot be read; both sides must run the same version")
    try:
        return recorddict_from_proto(Proto.FromString(data))
    except Exception as error:  # bytes of unknown origin
        raise UserError("its packed message cannot be read; both sides must run the same version") from error
