#!/usr/bin/env python3
"""Writes src/data/tokenizer_unicode.inc: the character classes as Hugging Face's tokenizers sees
them. The library mixes several Unicode versions (its regex engine, Rust's own tables, two crates),
so the classes are asked from it, code point by code point, and frozen: ids then do not depend on
which Unicode version a system library happens to know.

Normal forms and lower case are computed with utf8proc, whose tables are newer or older than the
library's; where the two differ is listed too (utf8proc 2.8: newer normal forms, older cases).

usage: unicode_classes.py OUT      (needs the tokenizers package and libutf8proc.so.2)
"""
import ctypes
import sys

from tokenizers import Regex, __version__, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BATCH = 20000
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp".split())


def kept(pre_tokenizer):
    out = set()
    for i in range(0, len(POINTS), BATCH):
        points = POINTS[i:i + BATCH]
        for _, (a, b) in pre_tokenizer.pre_tokenize_str("".join(map(chr, points))):
            out.update(points[a:b])
    return out


def category(name):
    return kept(pre_tokenizers.Split(Regex(r"\P{%s}+" % name), "removed"))


def numeric():
    out = set()
    for i in range(0, len(POINTS), BATCH):
        points = POINTS[i:i + BATCH]
        text = "a" + "".join(map(chr, points))
        for k, (_, (a, b)) in enumerate(pre_tokenizers.Digits(False).pre_tokenize_str(text)):
            if k % 2:
                out.update(points[a - 1:b - 1])
    return out


def word():
    out = set()
    for i in range(0, len(POINTS), BATCH):
        points = POINTS[i:i + BATCH]
        text = "".join("a" + chr(c) + " " for c in points)
        for _, (a, b) in pre_tokenizers.Whitespace().pre_tokenize_str(text):
            if b - a == 2:
                out.add(points[a // 3])
    return out


class Utf8proc:
    STABLE, COMPAT, COMPOSE, DECOMPOSE = 2, 4, 8, 16

    def __init__(self):
        self.lib = ctypes.CDLL("libutf8proc.so.2")
        self.lib.utf8proc_map.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t,
                                          ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
        self.lib.utf8proc_map.restype = ctypes.c_ssize_t
        self.free = ctypes.CDLL(None).free

    def map(self, text, options):
        data, out = text.encode(), ctypes.c_void_p()
        n = self.lib.utf8proc_map(data, len(data), ctypes.byref(out), options)
        text = ctypes.string_at(out, n).decode()
        self.free(out)
        return text


def inert(u):
    """Code points that the library's normal forms leave alone and utf8proc's do not."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    out = set()
    for c in POINTS:
        ch = chr(c)
        pairs = [(nfd, u.STABLE | u.DECOMPOSE, ch), (nfkd, u.STABLE | u.DECOMPOSE | u.COMPAT, ch)]
        if len(nfd.normalize_str(ch)) == 1:  # does it change places with a mark beside it?
            pairs += [(nfd, u.STABLE | u.DECOMPOSE, text) for text in
                      ("a" + ch + "\u0334", "a\u0360" + ch, "a" + ch + "\u0316", "a\u0316" + ch)]
        if any(f.normalize_str(text) != u.map(text, options) for f, options, text in pairs):
            assert nfkd.normalize_str(ch) == ch
            out.add(c)
    return out


def lower(u):
    out = {}
    for c in POINTS:
        text = normalizers.Lowercase().normalize_str(chr(c))
        if c != 0x130 and text != chr(u.lib.utf8proc_tolower(c)):
            assert len(text) == 1
            out[c] = ord(text)
    return out


def table(out, name, words, comment):
    out.write(f"/* {comment} */\nstatic const uint32_t {name}[] = {{\n")
    for i in range(0, len(words), 8):
        out.write("    " + " ".join(f"0x{w:08x}," for w in words[i:i + 8]) + "\n")
    out.write("};\n")


def main():
    every = set(POINTS)
    strip = normalizers.StripAccents()
    flags = [
        category("L"), category("N"), every - kept(pre_tokenizers.WhitespaceSplit()), word(),
        numeric(), every - kept(pre_tokenizers.Punctuation("removed")),
        {c for c in POINTS if strip.normalize_str(chr(c)) == ""},
    ]
    assert flags[2] == kept(pre_tokenizers.Split(Regex(r"\S+"), "removed"))
    runs, last = [], None
    for c in range(0x110000):
        bits = sum(1 << k for k, s in enumerate(flags) if c in s)
        if bits != last:
            runs.append(c << 8 | bits)
            last = bits
    import unicodedata  # of Unicode 14 or older: what PCRE2 10.42 knows at least
    newer, last = [], None
    got = {}
    for k, name in enumerate(CATEGORIES):
        for c in category(name):
            if unicodedata.category(chr(c)) != name:
                got[c] = k + 1
    for c in range(0x110000):
        k = got.get(c, 0)
        if k != (last or 0):
            newer.append(c << 8 | k)
            last = k
    u = Utf8proc()
    still, last = [], None
    alone = inert(u)
    for c in range(0x110000):
        if (c in alone) != (last or False):
            last = c in alone
            still.append(c << 8 | last)
    with open(sys.argv[1], "w") as out:
        out.write("/* Written by tests/golden/tokenizers/unicode_classes.py from tokenizers "
                  f"{__version__}; do not edit. */\n")
        table(out, "class_runs", runs, "code point << 8 | classes, in force up to the next entry")
        table(out, "newer_runs", newer,
              f"code point << 8 | 1 + category where it differs from Unicode {unicodedata.unidata_version}")
        table(out, "inert_runs", still, "code point << 8 | 1 where normal forms change nothing")
        table(out, "newer_lower", [w for pair in sorted(lower(u).items()) for w in pair],
              "code point, its lower case")
    print(len(runs), "class runs,", len(newer), "newer runs")


main()
