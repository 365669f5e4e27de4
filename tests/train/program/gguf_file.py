"""Reads what stands before the weights in a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

import struct

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, kind):
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def text(self):
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        inner = self.number("I")
        return [self.value(inner) for _ in range(self.number("Q"))]


def read_fields(path):
    """The fields by their keys, and the tensors: name -> (dims, type)."""
    fields, places, _ = _read(path)
    return fields, {name: (dims, kind) for name, (dims, kind, _) in places.items()}


def read_f32(path, name):
    """The numbers of a tensor of f32, and its dims."""
    _, places, (reader, begin) = _read(path)
    dims, kind, offset = places[name]
    if kind != 0:
        raise ValueError(f"{name} is of type {kind}")
    count = 1
    for dim in dims:
        count *= dim
    return struct.unpack_from(f"<{count}f", reader.data, begin + offset), dims


def _read(path):
    """Fields, tensors with their places, and the reader with the byte at which places begin."""
    reader = _Reader(path.read_bytes())
    magic, version, tensors, fields = (reader.number(kind) for kind in "IIQQ")
    if (magic, version) != (0x46554747, 3):
        raise ValueError(f"{path} begins with {magic:x}, version {version}")
    found = {}
    for _ in range(fields):
        key = reader.text()
        found[key] = reader.value(reader.number("I"))
    places = {}
    for _ in range(tensors):
        name = reader.text()
        dims = [reader.number("Q") for _ in range(reader.number("I"))]
        places[name] = (dims, reader.number("I"), reader.number("Q"))
    alignment = 32
    return found, places, (reader, (reader.at + alignment - 1) // alignment * alignment)
