"""Sends hostile multicast DNS answers: mdns_flood.py DEVICE COUNT

Each names another instance of _daisy._udp.local.; half of them are well-formed strangers, the others have
control characters, options as names, huge or missing values, or are cut short.
"""

import base64
import hashlib
import socket
import struct
import sys

GROUP, PORT, SERVICE = "ff02::fb", 5353, ["_daisy", "_udp", "local"]
PTR, TXT, AAAA, SRV = 12, 16, 28, 33


def name(labels):
    return b"".join(bytes([len(label)]) + label for label in map(to_bytes, labels)) + b"\0"


def to_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


def record(owner, kind, data, ttl=4500):
    return name(owner) + struct.pack("!HHIH", kind, 1, ttl, len(data)) + data


def strings(fields):
    return b"".join(bytes([len(field)]) + field for field in map(to_bytes, fields))


def answer(number):
    key = hashlib.sha256(str(number).encode()).digest()
    node = base64.b32encode(key).decode().rstrip("=").lower()
    fields = {
        "id": node, "name": f"stranger{number}", "version": "daisy 0.1.0", "protocol": "1",
        "port": "51738", "boot": f"{number:016x}",
    }
    match number % 10:
        case 1:
            fields["name"] = "\x1b[2J\x07"
        case 3:
            fields["name"] = "--home=/etc"
        case 5:
            fields["name"] = "x" * 200
        case 7:
            del fields["port"]
        case 9:
            fields["version"] = "\u202e" * 20
    text = strings(f"{key}={value}" for key, value in fields.items())
    owner, host = [node, *SERVICE], [node, "local"]
    address = socket.inet_pton(socket.AF_INET6, f"fe80::{number % 65536:x}")
    records = [
        record(SERVICE, PTR, name(owner)),
        record(owner, SRV, struct.pack("!HHH", 0, 0, 51738) + name(host)),
        record(owner, TXT, text),
        record(host, AAAA, address),
    ]
    packet = struct.pack("!HHHHHH", 0, 0x8400, 0, len(records), 0, 0) + b"".join(records)
    return packet[: len(packet) // 2] if number % 50 == 49 else packet


def main():
    device, count = sys.argv[1], int(sys.argv[2])
    index = socket.if_nametoindex(device)
    out = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    out.bind(("::", PORT))
    for number in range(count):
        out.sendto(answer(number), (GROUP, PORT, 0, index))


main()
