"""Reads what matters here of a 64-bit little-endian Mach-O file: load commands, names taken and names given.

Shapes and numbers are those of Apple's <mach-o/loader.h>, <mach-o/nlist.h> and the export trie of dyld.
Standard library only.
"""

import pathlib
import struct

MAGIC = 0xFEEDFACF
ARM64 = 0x0100000C
LC_SYMTAB, LC_CODE_SIGNATURE, LC_BUILD_VERSION, LC_DYLD_INFO = 0x2, 0x1D, 0x32, 0x22
LC_ID_DYLIB, LC_LOAD_DYLIB, LC_LOAD_WEAK_DYLIB, LC_REEXPORT_DYLIB = 0xD, 0xC, 0x80000018, 0x8000001F
LC_RPATH, LC_DYLD_INFO_ONLY, LC_DYLD_EXPORTS_TRIE = 0x8000001C, 0x80000022, 0x80000033
N_STAB, N_TYPE, N_EXT = 0xE0, 0x0E, 0x01
SPECIAL_LIBRARY = {0: "itself", 0xFE: "any library", 0xFF: "the program"}


class MachO:
    """`libraries` in the order of their ordinals, `rpaths`, `oldest` (macOS), `is_signed`, `taken`, `given`."""

    def __init__(self, path):
        self.data = pathlib.Path(path).read_bytes()
        magic, cpu, _, _, commands, _, _, _ = struct.unpack_from("<8I", self.data)
        if (magic, cpu) != (MAGIC, ARM64):
            raise ValueError(f"{path} is not a Mach-O file for arm64")
        self.libraries, self.rpaths, self.taken, self.given = [], [], {}, set()
        self.id = self.oldest = None
        self.is_signed = False
        symtab = trie = (0, 0)
        offset = 32
        for _ in range(commands):
            command, size = struct.unpack_from("<II", self.data, offset)
            if command in (LC_LOAD_DYLIB, LC_LOAD_WEAK_DYLIB, LC_REEXPORT_DYLIB):
                self.libraries.append(self._text_of(offset, size))
            elif command == LC_ID_DYLIB:
                self.id = self._text_of(offset, size)
            elif command == LC_RPATH:
                self.rpaths.append(self._text_of(offset, size))
            elif command == LC_BUILD_VERSION:
                (packed,) = struct.unpack_from("<I", self.data, offset + 12)
                self.oldest = f"{packed >> 16}.{packed >> 8 & 0xFF}"
            elif command == LC_CODE_SIGNATURE:
                self.is_signed = struct.unpack_from("<I", self.data, offset + 12)[0] > 0
            elif command == LC_SYMTAB:
                symtab = struct.unpack_from("<4I", self.data, offset + 8)
            elif command in (LC_DYLD_INFO, LC_DYLD_INFO_ONLY):
                trie = struct.unpack_from("<2I", self.data, offset + 40)
            elif command == LC_DYLD_EXPORTS_TRIE:
                trie = struct.unpack_from("<2I", self.data, offset + 8)
            offset += size
        self._read_symbols(*symtab)
        if trie[1]:
            self._read_trie(self.data[trie[0] : trie[0] + trie[1]])

    def _text_of(self, offset, size):
        """The string of a load command, whose place in it stands behind command and size."""
        (start,) = struct.unpack_from("<I", self.data, offset + 8)
        return self.data[offset + start : offset + size].split(b"\0", 1)[0].decode()

    def _read_symbols(self, symbols, count, strings, _):
        """Names that the loader has to find, by library. (A stab is for debuggers.)"""
        for index in range(count):
            name, kind, _, about, _ = struct.unpack_from("<IBBHQ", self.data, symbols + 16 * index)
            if kind & N_STAB or not kind & N_EXT or kind & N_TYPE:
                continue
            ordinal = about >> 8
            known = 1 <= ordinal <= len(self.libraries)
            library = self.libraries[ordinal - 1] if known else SPECIAL_LIBRARY.get(ordinal, "an unknown library")
            start = strings + name
            text = self.data[start : self.data.index(b"\0", start)].decode()
            self.taken[text] = library

    def _read_trie(self, trie):
        """Names that others may take. Each node: size of its value, value, children by the rest of the name."""
        nodes = [(0, b"")]
        seen = set()
        while nodes:
            at, name = nodes.pop()
            if at in seen:
                continue
            seen.add(at)
            size, at = uleb(trie, at)
            if size:
                self.given.add(name.decode())
            at += size
            children = trie[at]
            at += 1
            for _ in range(children):
                end = trie.index(b"\0", at)
                part = trie[at:end]
                child, at = uleb(trie, end + 1)
                nodes.append((child, name + part))


def uleb(data, at):
    """A number in groups of seven bits, the lowest first, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at
