"""CRC-32C, bit by bit, from its definition."""

from __future__ import annotations


def crc32c(data: bytes, value: int = 0) -> int:
    register = value ^ 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF
