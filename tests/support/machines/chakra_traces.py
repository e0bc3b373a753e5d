"""Chakra traces: read by the library of protocol buffers, and executed as ASTRA-sim does.

The schema and the rules are written from Chakra's schema and from ASTRA-sim's source
(CustomAlgorithm.cc, feeder_v3), and share nothing with `sley.formats.chakra`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

COMPUTE, SEND, RECEIVE = 4, 5, 6

_TYPES = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "Attribute": descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
}

_SCHEMA = {
    "Attribute": [
        ("name", 1, "string", False),
        ("int32_val", 7, "int32", False),
        ("int64_val", 9, "int64", False),
        ("bool_val", 27, "bool", False),
        ("string_val", 29, "string", False),
    ],
    "Metadata": [("version", 1, "string", False), ("attr", 2, "Attribute", True)],
    "Node": [
        ("id", 1, "uint64", False),
        ("name", 2, "string", False),
        ("type", 3, "int32", False),
        ("ctrl_deps", 4, "uint64", True),
        ("data_deps", 5, "uint64", True),
        ("duration_micros", 7, "uint64", False),
        ("attr", 10, "Attribute", True),
    ],
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="chakra.proto", package="t", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for word, number, kind, repeated in fields:
            field = message.field.add(name=word, number=number, type=_TYPES[kind])
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind == "Attribute":
                field.type_name = ".t.Attribute"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in _SCHEMA
    }


_MESSAGES = _messages()


@dataclass(frozen=True)
class Node:
    """A node. attributes: by name, with the type's word and the value."""

    id: int
    name: str
    type: int
    parents: tuple[int, ...]
    attributes: dict[str, tuple[str, Any]]

    def __getitem__(self, word: str) -> int:
        return int(self.attributes[word][1])


def _attribute(message: Any) -> tuple[str, Any]:
    fields = [(field.name, value) for field, value in message.ListFields() if field.name != "name"]
    return fields[0] if fields else ("bool_val", False)


def read(content: bytes) -> tuple[dict[str, Any], list[Node]]:
    """The metadata of a trace, and its nodes; checks what ASTRA-sim's reader demands."""
    parts, at = [], 0
    while at < len(content):
        size = shift = 0
        while True:
            byte = content[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            assert shift <= 28, "a length of more than 28 bits"
            if not byte & 0x80:
                break
        assert at + size <= len(content), "a message is cut off"
        parts.append(content[at : at + size])
        at += size
    head = _MESSAGES["Metadata"].FromString(parts[0])
    nodes = []
    for part in parts[1:]:
        node = _MESSAGES["Node"].FromString(part)
        assert not _unknown(node), "fields that the schema doesn't have"
        parents = tuple(node.data_deps) + tuple(node.ctrl_deps)
        attributes = {one.name: _attribute(one) for one in node.attr}
        nodes.append(Node(node.id, node.name, node.type, parents, attributes))
    assert nodes, "ASTRA-sim refuses a trace without a node that depends on nothing"
    known = {node.id for node in nodes}
    assert len(known) == len(nodes), "two nodes have one id"
    for node in nodes:
        assert set(node.parents) <= known - {node.id}, "a parent that is not in the trace"
    texts = {one.name: _attribute(one)[1] for one in head.attr}
    return {"version": head.version, **texts}, nodes


def _unknown(message: Any) -> bool:
    again = type(message)()
    again.CopyFrom(message)
    again.DiscardUnknownFields()
    return again.ByteSize() != message.ByteSize()


def read_files(path: Path, ranks: int) -> list[list[Node]]:
    """The nodes of each rank's trace."""
    return [read(path.with_suffix(f".{rank}.et").read_bytes())[1] for rank in range(ranks)]


def execute(traces: list[list[Node]]) -> Counter[tuple[int, int]]:
    """Executes the traces of all ranks; returns the bytes from rank to rank. Messages are matched
    by ranks, tag and size; each may stand for only one send and one receive at a time."""
    waiting: dict[tuple[int, int], set[int]] = {}
    children: dict[tuple[int, int], list[int]] = defaultdict(list)
    nodes = {(rank, node.id): node for rank, trace in enumerate(traces) for node in trace}
    for (rank, number), node in nodes.items():
        waiting[rank, number] = set(node.parents)
        for parent in node.parents:
            children[rank, parent].append(number)
    ready = [key for key, parents in waiting.items() if not parents]
    sent: dict[tuple[int, int, int, int], int] = {}
    posted: dict[tuple[int, int, int, int], tuple[int, int]] = {}
    traffic: Counter[tuple[int, int]] = Counter()
    done = 0

    def finish(key: tuple[int, int]) -> None:
        nonlocal done
        done += 1
        for child in children[key]:
            waiting[key[0], child].discard(key[1])
            if not waiting[key[0], child]:
                ready.append((key[0], child))

    while ready:
        key = ready.pop()
        rank, node = key[0], nodes[key]
        if node.type == SEND:
            message = (rank, node["comm_dst"], node["comm_tag"], node["comm_size"])
            assert message not in sent, "two messages with one tag"
            sent[message] = 1
            traffic[rank, node["comm_dst"]] += node["comm_size"]
            if message in posted:
                finish(posted.pop(message))
            finish(key)
        elif node.type == RECEIVE:
            message = (node["comm_src"], rank, node["comm_tag"], node["comm_size"])
            assert message not in posted, "two receives with one tag"
            if message in sent:
                finish(key)
            else:
                posted[message] = key
        else:
            assert node.type == COMPUTE
            finish(key)
    assert done == len(nodes), f"{len(nodes) - done} nodes never end"
    received = sum(node.type == RECEIVE for node in nodes.values())
    assert received == len(sent), "messages that nobody receives"
    return traffic
