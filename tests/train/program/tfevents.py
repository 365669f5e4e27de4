"""Reads TensorBoard's event files by their published format: TFRecord framing with CRC-32C, and the few fields of Event and Summary that are
needed. Only the standard library is used."""

import struct


def _table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The events' bytes. ValueError where a record is torn or its checksum wrong."""
    at = 0
    while at < len(data):
        head = data[at:at + 12]
        if len(head) < 12 or struct.unpack("<I", head[8:])[0] != masked_crc(head[:8]):
            raise ValueError(f"the length at {at} is damaged")
        length = struct.unpack("<Q", head[:8])[0]
        body, crc = data[at + 12:at + 12 + length], data[at + 12 + length:at + 16 + length]
        if len(crc) < 4 or struct.unpack("<I", crc)[0] != masked_crc(body):
            raise ValueError(f"the record at {at} is damaged")
        yield body
        at += 16 + length


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(message):
    """(number, value) of a message's fields: an int, or bytes of what is fixed or has a length."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(message, at)
        else:
            size, at = _varint(message, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            value, at = message[at:at + size], at + size
            if len(value) < size:
                raise ValueError("a field is cut off")
        yield key >> 3, value


def read(path):
    """{tag: {step: value}}, as a reader shows it that knows SessionLog.START: what was seen of later steps is dropped. ValueError on any damage."""
    with open(path, "rb") as file:
        events = [dict(fields(record)) for record in records(file.read())]
    if not events or events[0].get(3) != b"brain.Event:2":
        raise ValueError("the first event has no version")
    scalars = {}
    for event in events:
        step = event.get(2, 0)
        if not struct.unpack("<d", event[1])[0] > 1.6e9:
            raise ValueError("an event has no time")
        if 7 in event and dict(fields(event[7])).get(1) == 1:
            scalars = {tag: {s: v for s, v in values.items() if s < step} for tag, values in scalars.items()}
        for number, value in fields(event.get(5, b"")):
            scalar = dict(fields(value)) if number == 1 else {}
            if scalar:
                scalars.setdefault(scalar[1].decode(), {})[step] = struct.unpack("<f", scalar[2])[0]
    return scalars
