#!/usr/bin/env python3
"""Writes src/data/tokenizer_unicode.inc: the character classes as Hugging Face's tokenizers sees
them. The library mixes several Unicode versions (its regex engine, Rust's own tables, two crates),
so the classes are asked from it, code point by code point, and frozen: ids then do not depend on
which Unicode version a system library happens to know.

usage: unicode_classes.py OUT      (needs the tokenizers package)
"""
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
    with open(sys.argv[1], "w") as out:
        out.write("/* Written by tests/golden/tokenizers/unicode_classes.py from tokenizers "
                  f"{__version__}; do not edit. */\n")
        table(out, "class_runs", runs, "code point << 8 | classes, in force up to the next entry")
        table(out, "newer_runs", newer,
              f"code point << 8 | 1 + category where it differs from Unicode {unicodedata.unidata_version}")
    print(len(runs), "class runs,", len(newer), "newer runs")


main()
