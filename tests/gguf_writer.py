"""Writes GGUF files by the format's description, for the tests of what reads them."""

import struct

import numpy as np

TYPES = {int: 4, float: 6, bool: 7, str: 8}  # uint32, float32, bool, text
FORMATS = {4: "<I", 5: "<i", 6: "<f", 7: "<?"}


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(found):
    """The type and the bytes of a metadata value; a list's elements are all of one type."""
    if isinstance(found, list):
        kind = TYPES[type(found[0])]
        body = b"".join(value(x)[4:] for x in found)
        return struct.pack("<IIQ", 9, kind, len(found)) + body
    kind = TYPES[type(found)]
    return struct.pack("<I", kind) + (
        text(found) if kind == 8 else struct.pack(FORMATS[kind], found)
    )


def written(metadata, tensors, offsets=None, counts=None, version=3):
    """The bytes of a file. A tensor is (llama.cpp's number of its type, shape, bytes); `offsets`
    and `counts` (of tensors and entries) are lies about them."""
    head = [b"GGUF", struct.pack("<IQQ", version, *(counts or (len(tensors), len(metadata))))]
    head += [text(name) + value(found) for name, found in metadata.items()]
    body = b""
    for name, (kind, shape, content) in tensors.items():
        place = (offsets or {}).get(name, len(body))
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head.append(text(name) + sizes + struct.pack("<IQ", kind, place))
        body += content + bytes(-len(content) % 32)
    whole = b"".join(head)
    return whole + bytes(-len(whole) % 32) + body


def plain(array):
    """A tensor of type F32 with these values."""
    array = np.ascontiguousarray(array, np.float32)
    return 0, array.shape, array.tobytes()


def turned(rows, heads):
    """The rows of queries or keys as llama.cpp's converter orders them: those that lie half a head
    apart become neighbours."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
