#!/usr/bin/env python3
"""Writes a policy's metadata into its WebAssembly module.

usage: annotate.py MODULE METADATA OUTPUT

METADATA is a JSON file; it becomes the custom section `io.kubewarden.metadata`, from which an evaluator reads how
the module is called. A section of that name which is already there is replaced. `annotate.py --show MODULE` prints
what a module says about itself.
"""

import json
import sys

SECTION = b"io.kubewarden.metadata"
HEADER = b"\0asm\x01\0\0\0"


def leb128(number):
    out = bytearray()
    while True:
        byte, number = number & 0x7F, number >> 7
        out.append(byte | (0x80 if number else 0))
        if not number:
            return bytes(out)


def read_leb128(data, at):
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, at


def sections(module):
    """Yields (id, whole section, content) for each section."""
    if module[:8] != HEADER:
        sys.exit("failed to read module: not a WebAssembly core module")
    at = 8
    while at < len(module):
        start, kind = at, module[at]
        size, at = read_leb128(module, at + 1)
        if at + size > len(module):
            sys.exit("failed to read module: a section ends after the file does")
        yield kind, module[start : at + size], module[at : at + size]
        at += size


def metadata_of(kind, content):
    """The metadata in a section, or None if it is another section."""
    if kind != 0:
        return None
    size, at = read_leb128(content, 0)
    return content[at + size :] if content[at : at + size] == SECTION else None


def annotate(module, metadata):
    kept = [whole for kind, whole, content in sections(module) if metadata_of(kind, content) is None]
    content = leb128(len(SECTION)) + SECTION + metadata
    return HEADER + b"".join(kept) + b"\0" + leb128(len(content)) + content


def read(path):
    with open(path, "rb") as file:
        return file.read()


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--show":
        found = [metadata_of(kind, content) for kind, _, content in sections(read(arguments[1]))]
        found = [metadata for metadata in found if metadata is not None]
        if not found:
            sys.exit(f"{arguments[1]} has no section {SECTION.decode()}")
        print(json.dumps(json.loads(found[0]), indent=2, ensure_ascii=False))
    elif len(arguments) == 3:
        module, metadata, output = arguments
        # Written compactly and in the file's order, so that the same input gives the same bytes.
        text = json.dumps(json.loads(read(metadata)), separators=(",", ":"), ensure_ascii=False)
        annotated = annotate(read(module), text.encode())
        with open(output, "wb") as file:
            file.write(annotated)
    else:
        sys.exit(__doc__.strip())


if __name__ == "__main__":
    main(sys.argv[1:])
