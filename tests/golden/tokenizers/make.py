#!/usr/bin/env python3
"""Writes small tokenizers in the style of the families, and what Hugging Face's tokenizers says about
them: golden.json. The real files of GPT-2 and Qwen3 are not stored, only their answers.

usage: make.py DIR_OF_REAL_TOKENIZERS BIBLE.txt LEARNED.json    (needs the tokenizers package)

LEARNED.json is what `ductile tokenize --train --vocab-size 600` made of the first 200 000 bytes of
BIBLE.txt; it must equal what the library learns from them.
"""
import json
import lzma
import os
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, __version__, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = [
    "In the beginning God created the heaven and the earth. And the earth was without form, and void;",
    "It's what they'll say when we've gone: I'd do it, you're right, don't! HE'S HERE, WE'LL SEE.",
    "The quick brown fox jumps over the lazy dog 0123456789 times, 2024-12-31, 3.14159, 1,000,000.",
    "Äpfel, Öl und Übermut: die Straße nach Köln; café, naïve, façade, niño, œuvre, Ærøskøbing.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ещё раз!",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Αυτό είναι ένα τεστ.",
    "日本語の文章です。漢字とかなが混ざっています。中文也有一些。한국어 문장도 있습니다.",
    "for (int i = 0; i < n; i++) {\n    x[i] = y[i] + 1;  // comment\n\tprintf(\"%d\\n\", x[i]);\n}\n",
    "नमस्ते दुनिया। שלום עולם. مرحبا بالعالم. สวัสดีชาวโลก",
] * 4
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m"
         r"|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t"
         r"|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def special(text, **flags):
    return AddedToken(text, special=True, normalized=False, **flags)


def learn(pre, size, specials, alphabet=(), normalizer=None, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=list(alphabet), show_progress=False,
        **{k: v for k, v in model.items() if k in ("continuing_subword_prefix", "end_of_word_suffix")}))
    return json.loads(t.to_str())["model"]


def bpe(model, **more):
    return models.BPE(model["vocab"], [tuple(m) for m in model["merges"]], **more)


def llama2():
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    m = learn(pre_tokenizers.Metaspace(), 700, specials)
    t = Tokenizer(bpe(m, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def mistral():
    t = llama2()
    t.normalizer = None
    t.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    return t


def metaspace():
    t = llama2()
    t.normalizer = normalizers.NFKC()
    t.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("▁", prepend_scheme="always")])
    return t


def byte_level(regex):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3(regex=LLAMA3):
    m = learn(byte_level(regex), 700, [], pre_tokenizers.ByteLevel.alphabet())
    m["vocab"]["Ġinvisible"] = len(m["vocab"])  # no merge makes it: only ignore_merges finds it
    t = Tokenizer(bpe(m, ignore_merges=True))
    t.pre_tokenizer = byte_level(regex)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([special("<|begin_of_text|>"), special("<|end_of_text|>"), special("<|eot_id|>")])
    bos = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    return t


def qwen2():
    m = learn(byte_level(QWEN2), 700, [], pre_tokenizers.ByteLevel.alphabet())
    t = Tokenizer(bpe(m))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = byte_level(QWEN2)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.add_special_tokens([special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")])
    t.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return t


def odd():
    """Added tokens of every kind, and the stages that the families above do not use."""
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous"),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split("en", "merged_with_next"),
        pre_tokenizers.Split(Regex("[aeiou]+"), "contiguous", invert=True)])
    norm = normalizers.Sequence([
        normalizers.Strip(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"\d{2,}"), "00"), normalizers.Replace("ss", "ß")])
    m = learn(pre, 400, ["<unk>"], normalizer=norm)
    t = Tokenizer(bpe(m, unk_token="<unk>", fuse_unk=False))
    t.normalizer = norm
    t.pre_tokenizer = pre
    t.decoder = decoders.Fuse()
    t.add_special_tokens([special("<unk>"), special("<mask>", lstrip=True), special("<sep>", rstrip=True),
                          special("<both>", lstrip=True, rstrip=True)])
    t.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("ÉTÉ", normalized=True),
                  AddedToken("wordy", normalized=True, lstrip=True), AddedToken("été là", normalized=False)])
    t.post_processor = processors.RobertaProcessing(("<sep>", t.token_to_id("<sep>")),
                                                    ("<both>", t.token_to_id("<both>")))
    return t


def suffix():
    """CLIP's way to mark ends of words, BERT's to mark continuations, an unknown token that fuses."""
    pre = pre_tokenizers.Whitespace()
    norm = normalizers.NFKD()
    m = learn(pre, 500, ["<unk>"], normalizer=norm, continuing_subword_prefix="##", end_of_word_suffix="</w>")
    t = Tokenizer(bpe(m, unk_token="<unk>", fuse_unk=True, continuing_subword_prefix="##",
                      end_of_word_suffix="</w>"))
    t.normalizer = norm
    t.pre_tokenizer = pre
    t.decoder = decoders.BPEDecoder("</w>")
    return t


def o200k():
    """A regex without a scanner of its own."""
    t = llama3(O200K)
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(O200K), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
    return t


# ---- What is asked --------------------------------------------------------------------------

ALPHABET = [
    " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2028", "\x85", "\x0b", "\x00",
    "\x1f", "'s", "'S", "'\u017f", "'ll", "'LL", "'Re", "'t", "'", "a", "b", "Hello", " world", "the",
    "ing", "don't", "I'm", "x", "É", "é", "e\u0301", "ſ", "K", "ß", "ﬁ", "İ", "ı", "中", "文字", "日本語",
    "한국", "각", "ᄀ", "ᅡ", "ᆨ", "🦙", "👨‍👩‍👧", "👍🏽", "🇩🇪", "\u200d", "\u200b", "\ufe0f", "\u0300",
    "\u0301", "\u0334", "\u0327", "à́", "1", "23", "2024", "٣", "Ⅷ", "½", "²", "१२", "!", "?!", "...",
    "—", "(", "{", "_", "#", "\\", "/", "$", "€", "\u0e01\u0e33", "नमस्ते", "שלום", "مرحبا", "Ω", "Å",
    "ǅ", "𝐀", "𝟘", "🜁", "\U000e0001", "\U0010fffd", "\ue000", "\ufffd", "\u1c89", "\ua7cb",
    "\U00010d40", "\u0897", "\U000323b5", "\u180e", "\ufeff", "▁", "▁▁", "Ġ", "<0x41>", "<|endoftext|>",
    "<|im_start|>", "<s>", "</s>", "<unk>", "<mask>", "<sep>", "<both>", "word", "wordy", "ÉTÉ", "été là",
    "<|eot_id|>", "<think>", "invisible", "en", "12ss34"]
CORPUS = [
    "", " ", "  ", "   ", "\n", "\t\t", " \n ", "\r\n\r\n", "a", " a", "  a", "a ", "a  ", " a b  c   d",
    "Hello world", " Hello world", "Hello\n\nworld\n", "\tindent\n\t\tmore", "x = 1;  // two spaces",
    "This is 🦙.cpp", "👩‍👩‍👧‍👦 and 👍🏽 and 🇩🇪🇫🇷", "中文字符 日本語 한국어", "e\u0301\u0327 a\u0327\u0301 \u0301x",
    "\x00\x01\x02\x1f\x7f\x80\x9f", "\ufeffBOM", "tab\tnul\x00end", "<s>", "<s><s> </s>", " <s> a </s> b",
    "a<mask>b", "a  <mask>  b", "a <sep>  b", "a <both> b<both>", "word words sword word.", "Été là, ÉTÉ été là",
    "<|endoftext|>", "<|endoftext|><|endoftext|>", "a <|endoftext|> b", "<|im_start|>user\nHi<|im_end|>\n",
    "<think>\nhm\n</think>\n\nyes", "<|begin_of_text|>x<|eot_id|>", "1234567890", "3.14159e-10", "1,000,000",
    "IT'S we'LL they'Re O'ſ 'st 'S", "don't'd've", "'''s", "... --- !!!", "ＡＢＣ１２３ ﬁﬂ ①②③", "İIıi ǅǆ ẞß",
    "x\u0334\u0301\u0323y", "각 ᄀ\u1161\u11a8 가\u11a8", "नमस्ते दुनिया", "שָׁלוֹם", "ABC" * 30, " " * 50 + "x",
    "\n" * 30, "<0x41><0x0A>", "▁▁ ▁a", "Ġthe", "a\u00a0b\u2003c\u3000d\u180ee", "éÉ" * 20, "Ⅷ½²٣१",
    "\U00010000\U0001f999\U000e0041\U0010ffff", " invisible", "The end.",
    "".join(map(chr, range(256))), "".join(chr(c) for c in range(0x2f0, 0x380)),
]
LONG = [("a", 100000), ("ab", 50000), (" ", 100000), ("é", 50000), ("1", 100000), ("\n ", 20000),
        ("the word and ", 8000), ("中", 20000), ("!?", 30000), ("'s", 20000), ("e\u0301\u0327", 20000)]
STRINGS, BLOCK = 4000, 100


def fnv(numbers, h=0xcbf29ce484222325):
    for x in numbers:
        h = ((h ^ x) * 0x100000001b3) & 0xffffffffffffffff
    return h


class Random:
    """The same 32-bit generator as in the test."""

    def __init__(self):
        self.state = 12345

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & 0xffffffffffffffff
        return (self.state >> 33) % n


def random_strings():
    r = Random()
    for _ in range(STRINGS):
        yield "".join(ALPHABET[r.below(len(ALPHABET))] for _ in range(1 + r.below(16)))


def compact(ids):
    return ids if len(ids) <= 40 else [-1, len(ids), fnv(ids) & 0x7fffffffffffffff]


def answers(t):
    blocks, h = [], None
    for i, text in enumerate(random_strings()):
        h = fnv(t.encode(text, add_special_tokens=False).ids + [0xffffffff], h or 0xcbf29ce484222325)
        if i % BLOCK == BLOCK - 1:
            blocks.append(f"{h:016x}")
            h = None
    plain = [t.encode(s, add_special_tokens=False).ids for s in CORPUS]
    decode = [t.decode(ids, skip_special_tokens=False) for ids in plain]
    skipped = [t.decode(ids, skip_special_tokens=True) for ids in plain]
    r = Random()
    some = [[r.below(t.get_vocab_size() + 2) for _ in range(1 + r.below(12))] for _ in range(60)]
    return {
        "ids": [compact(ids) for ids in plain],
        "special": [compact(t.encode(s).ids) for s in CORPUS[:16]],
        "decoded": [i if d == CORPUS[i] else d for i, d in enumerate(decode)],
        "skipped": [True if s == decode[i] else s for i, s in enumerate(skipped)],
        "some": [[ids, t.decode(ids, skip_special_tokens=False)] for ids in some],
        "long": [compact(t.encode(s * n, add_special_tokens=False).ids) for s, n in LONG],
        "random": blocks,
    }


def learned(bible, path):
    text = open(bible, encoding="utf-8", newline="").read()[:200000]
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=600, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    ours, theirs = json.load(open(path)), json.loads(t.to_str())
    assert ours["model"]["vocab"] == theirs["model"]["vocab"]
    assert [m.split(" ") for m in ours["model"]["merges"]] == theirs["model"]["merges"]
    return Tokenizer.from_file(path)


def main():
    real, bible, learned_path = sys.argv[1:]
    golden = {}
    for make in (llama2, mistral, metaspace, llama3, qwen2, odd, suffix, o200k):
        t = make()
        path = os.path.join(HERE, make.__name__ + ".json")
        text = json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":"))
        open(path, "w", encoding="utf-8").write(text)
        golden[make.__name__] = answers(Tokenizer.from_file(path))
    for name in ("gpt2", "qwen3"):
        with lzma.open(os.path.join(real, name, "tokenizer.json.xz")) as f:
            golden[name] = answers(Tokenizer.from_str(f.read().decode()))
    golden["learned"] = answers(learned(bible, learned_path))
    out = {"tokenizers": __version__, "alphabet": ALPHABET, "corpus": CORPUS, "long": LONG,
           "strings": STRINGS, "block": BLOCK, "answers": golden}
    with open(os.path.join(HERE, "golden.json"), "w") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))


main()
