"""Reads a TensorBoard event file with a simple implementation (bit-by-bit CRC32C, protobuf by hand) and prints one
JSON line per scalar.

    event_file.py FILE
"""
import json
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        if key & 7 == 2:
            size = varint()
        yield key >> 3, data[at:at + size]
        at += size


assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
data, at, number = open(sys.argv[1], "rb").read(), 0, 0
while at < len(data):
    head = data[at:at + 8]
    (size,) = struct.unpack("<Q", head)
    assert struct.unpack("<I", data[at + 8:at + 12])[0] == masked(head), f"record {number}: CRC of its length"
    event = data[at + 12:at + 12 + size]
    assert len(event) == size
    assert struct.unpack("<I", data[at + 12 + size:at + 16 + size])[0] == masked(event), f"record {number}: CRC"
    at += 16 + size
    of = dict(fields(event))
    assert struct.unpack("<d", of[1])[0] > 0
    if number == 0:
        assert of[3] == b"brain.Event:2"
    else:
        for _, value in fields(of[5]):
            one = dict(fields(value))
            print(json.dumps({"step": of[2], "tag": one[1].decode(), "value": struct.unpack("<f", one[2])[0]}))
    number += 1
