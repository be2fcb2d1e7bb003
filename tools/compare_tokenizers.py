#!/usr/bin/env python3
"""Compares ebb's tokenizers with the package `tokenizers`: ids, decoded text and speed.

  tools/compare_tokenizers.py --program build/release/tests/encode_strings --data FOLDER [--kinds gpt2,bert_uncased]
                              [--strings 100000] [--golden tests/golden/tokenizers.json.gz]

FOLDER holds shakespeare/input.txt, wikitext-2/*.txt and ag_news/test.csv. For each kind of tokenizer this trains a small one
on those texts, with the normalizer, pre-tokenizer, post-processor and decoder of the real model, and encodes with both

- the texts, whole and by lines, with the processor time of a first pass on one thread;
- every assigned code point, in a few surroundings (between two accents, which a normalizer may exchange);
- random Unicode strings.

A code point that differs is left out of the random strings and counted: the two sides have tables of different versions of
Unicode. Prints one JSON object for each kind. --golden writes smaller tokenizers with strings and what the package makes of
them, for the C++ tests. Needs the packages tokenizers and sentencepiece; build the program with
`ninja -C build/release encode_strings`.
"""
import argparse
import gzip
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# A pattern without a scanner of its own in ebb: GPT-4o's.
GPT4O = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


# --- kinds: each returns a tokenizer trained on an iterator of texts

def byte_level(texts, size, specials, normalizer=None, split=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    if split:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(split), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def template(tokenizer, single, names):
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names])
    return tokenizer


def gpt2(texts, size):
    return byte_level(texts, size, ["<|endoftext|>"])


def llama3(texts, size):
    tokenizer = byte_level(texts, size, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], split=LLAMA3, ignore_merges=True)
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])])
    return tokenizer


def qwen2(texts, size):
    return byte_level(texts, size, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizers.NFC(), split=QWEN)


def gpt4o(texts, size):
    return byte_level(texts, size, ["<|endoftext|>"], split=GPT4O)


def neox(texts, size):
    tokenizer = byte_level(texts, size, ["<|endoftext|>", "<|padding|>"], normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True, special=False) for n in range(24, 1, -1)])
    return tokenizer


def roberta(texts, size):
    tokenizer = byte_level(texts, size, ["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    return tokenizer


def sentence_piece_bpe(texts, size, change):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=pieces, show_progress=False,
                                                             limit_alphabet=120))
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = description["added_tokens"][:3]
    description["model"]["byte_fallback"] = True
    description["pre_tokenizer"] = None
    change(description)
    tokenizer = Tokenizer.from_str(json.dumps(description))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    return template(tokenizer, "<s> $A", ["<s>"])


def llama2(texts, size):
    def change(description):
        description["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    return sentence_piece_bpe(texts, size, change)


def mistral(texts, size):
    def change(description):
        description["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return sentence_piece_bpe(texts, size, change)


def bert(texts, size, lower_case):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    return template(tokenizer, "[CLS] $A [SEP]", ["[CLS]", "[SEP]"])


def bert_uncased(texts, size):
    return bert(texts, size, True)


def bert_cased(texts, size):
    return bert(texts, size, False)


def charsmap(texts, rule):
    """SentencePiece's table of replacements: nmt_nfkc, or for golden files a few rules, which are much smaller."""
    import sentencepiece
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "model")
        options = {"normalization_rule_name": rule}
        if rule == "small":
            with open(prefix + ".tsv", "w") as rules:
                for code in [*range(0xA0, 0x180), *range(0x2000, 0x2060), *range(0x3300, 0x3340), *range(0xFB00, 0xFB07),
                             *range(0xFF01, 0xFF5F)]:
                    target = unicodedata.normalize("NFKC", chr(code))
                    if target != chr(code):
                        rules.write(f"{code:X}\t{' '.join(f'{ord(c):X}' for c in target)}\n")
            options = {"normalization_rule_tsv": prefix + ".tsv"}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts[:2000]), model_prefix=prefix, vocab_size=500,
                                                 hard_vocab_limit=False, minloglevel=2, **options)
        model = pathlib.Path(prefix + ".model").read_bytes()
    return message_field(message_field(model, 3), 2)  # ModelProto.normalizer_spec, NormalizerSpec.precompiled_charsmap


def message_field(message, wanted):
    """The last field with this number and of bytes in a protobuf message."""
    at, found = 0, None

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(message):
        key = number()
        if key & 7 == 2:
            size = number()
            if key >> 3 == wanted:
                found = message[at:at + size]
            at += size
        elif key & 7 == 0:
            number()
        else:
            at += 8 if key & 7 == 1 else 4
    return found


def unigram(texts, size, normalizer, pre_tokenizer):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(texts, trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    return tokenizer


def t5(texts, size):
    table = charsmap(texts, "small" if size < 2000 else "nmt_nfkc")
    tokenizer = unigram(texts, size, normalizers.Precompiled(table), pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]))
    return template(tokenizer, "$A </s>", ["</s>"])


def xlm_roberta(texts, size):
    table = charsmap(texts, "small" if size < 2000 else "nmt_nfkc")
    tokenizer = unigram(texts, size, normalizers.Sequence([
        normalizers.Precompiled(table), normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex(" {2,}"), "▁")]), pre_tokenizers.Metaspace())
    return template(tokenizer, "<pad> $A </s>", ["<pad>", "</s>"])


def parts(texts, size):
    """Not a real model: normalizers and pre-tokenizers that the others do not use."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
                                                 normalizers.Strip(), normalizers.NFD()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.Split("ing", "merged_with_previous"), pre_tokenizers.Split("th", "merged_with_next")])
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=["[UNK]"], show_progress=False))
    tokenizer.add_tokens([AddedToken("one word", single_word=True), AddedToken("strip", lstrip=True, rstrip=True)])
    return tokenizer


KINDS = {kind.__name__: kind for kind in (gpt2, llama3, qwen2, gpt4o, neox, roberta, llama2, mistral, bert_uncased,
                                          bert_cased, t5, xlm_roberta, parts)}


# --- strings

def assigned_characters():
    return [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]


class RandomStrings:
    def __init__(self, seed, characters, texts, specials):
        self.random = random.Random(seed)
        self.words = sorted({word for text in texts[:3000] for word in text.split(" ")})[:20000]
        everything = [c for c in characters if ord(c) >= 0x80]
        of = lambda *categories: [c for c in everything if unicodedata.category(c) in categories]  # noqa: E731
        span = lambda *ranges: [c for c in everything if any(a <= ord(c) <= b for a, b in ranges)]  # noqa: E731
        self.alphabets = [
            list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"), list("0123456789"), list("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~\\"),
            list(" \n\t\r\v\f"), [" "], of("Zs", "Zl", "Zp", "Cc"), of("Mn", "Mc", "Me"), of("Nd", "Nl", "No"), of("Po", "Ps", "Sm", "So"),
            of("Cf"), span((0xC0, 0x24F)), span((0x370, 0x3FF)), span((0x400, 0x52F)), span((0x590, 0x6FF)), span((0x900, 0xDFF)),
            span((0xE00, 0xEFF)), span((0x1100, 0x11FF)), span((0xAC00, 0xD7A3)), span((0x3040, 0x30FF)), span((0x4E00, 0x9FFF)),
            span((0xF900, 0xFAFF), (0xFF00, 0xFFEF)), span((0x1F300, 0x1FAFF)) + ["\u200d", "\ufe0f"], everything]
        self.alphabets = [alphabet for alphabet in self.alphabets if alphabet]
        self.fixed = ["'s", "'T", "'re", "'VE", "'m", "'ll", "'d", "'ſ", "  ", "\r\n", "\n\n", "▁", "é", "ﷺ", *specials]

    def __iter__(self):
        while True:
            pieces = []
            for _ in range(self.random.randint(0, 12)):
                choice = self.random.random()
                if choice < 0.25:
                    pieces.append(self.random.choice(self.words))
                elif choice < 0.35:
                    pieces.append(self.random.choice(self.fixed))
                else:
                    alphabet = self.random.choice(self.alphabets)
                    pieces.append("".join(self.random.choices(alphabet, k=self.random.randint(1, 5))))
                if self.random.random() < 0.4:
                    pieces.append(" ")
            yield "".join(pieces)


# --- both sides

def run_ebb(program, tokenizer_file, strings):
    with tempfile.TemporaryDirectory() as folder:
        source, result = os.path.join(folder, "strings"), os.path.join(folder, "results")
        with open(source, "wb") as file:
            for string in strings:
                data = string.encode()
                file.write(struct.pack("<I", len(data)) + data)
        printed = subprocess.run([program, tokenizer_file, source, result], check=True, capture_output=True, text=True).stdout
        data, at, rows = pathlib.Path(result).read_bytes(), 0, []
        for _ in strings:
            row = []
            for width in (4, 4, 1):
                (count,) = struct.unpack_from("<I", data, at)
                part = data[at + 4:at + 4 + count * width]
                row.append(list(struct.unpack(f"<{count}i", part)) if width == 4 else part.decode())
                at += 4 + count * width
            rows.append(tuple(row))
    return rows, json.loads(printed)


def run_package(tokenizer, strings, plain=True):
    """The same rows, and the seconds of the fastest of the package's calls for many strings. Without `plain`, the first ids are None."""
    start = time.process_time()
    rows = tokenizer.encode_batch_fast(strings, add_special_tokens=False) if plain else []
    seconds = time.process_time() - start
    first = [row.ids for row in rows] if plain else [None] * len(strings)
    special = [row.ids for row in tokenizer.encode_batch_fast(strings)]
    return list(zip(first, special, tokenizer.decode_batch(special))), seconds


def differences(program, tokenizer_file, strings, plain=True):
    """Indices of strings with other ids, and with other decoded text; seconds of both sides; bytes."""
    ours, printed = run_ebb(program, tokenizer_file, strings)
    theirs, seconds = run_package(Tokenizer.from_file(tokenizer_file), strings, plain)
    ids = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a[1] != b[1] or (plain and a[0] != b[0])]
    text = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a[2] != b[2]]
    return ids, text, seconds, printed


def compare(name, options, texts, whole, characters):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "tokenizer.json")
        tokenizer = KINDS[name](texts, options.vocabulary)
        tokenizer.save(file)
        specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        report = {"kind": name, "vocabulary": tokenizer.get_vocab_size()}

        ids, decoded, seconds, printed = differences(options.program, file, texts)
        report["lines"] = {"count": len(texts), "bytes": printed["bytes"], "other_ids": len(ids), "other_text": len(decoded),
                           "ebb_MB_per_s": round(printed["bytes"] / printed["seconds"] / 1e6, 2),
                           "package_MB_per_s": round(printed["bytes"] / seconds / 1e6, 2),
                           "ratio": round(seconds / printed["seconds"], 2)}
        ids, decoded, seconds, printed = differences(options.program, file, whole)
        report["texts"] = {"count": len(whole), "other_ids": len(ids), "other_text": len(decoded),
                           "ratio": round(seconds / printed["seconds"], 2)}

        strings = [f"a{c}b {c} {c}1'{c}\n{c}{c} x\u0316{c}\u0334" for c in characters]
        ids, decoded, _, _ = differences(options.program, file, strings, plain=False)
        other = [characters[i] for i in sorted(set(ids) | set(decoded))]
        report["code_points"] = {"count": len(characters), "other": len(other),
                                 "examples": [f"U+{ord(c):04X}" for c in other[:options.show]]}

        left_out = set(other)
        made = RandomStrings(name, [c for c in characters if c not in left_out], texts, specials)
        strings = [string for string, _ in zip(made, range(options.strings))]
        ids, decoded, _, _ = differences(options.program, file, strings, plain=False)
        report["random"] = {"count": len(strings), "other_ids": len(ids), "other_text": len(decoded),
                            "examples": [strings[i] for i in (ids + decoded)[:options.show]]}
        return report


def golden(path, texts, characters):
    """Small tokenizers, and the package's results for some strings."""
    rows = []
    # Characters that are the same in all versions of Unicode that the two sides may have.
    common = [c for c in characters if ord(c) < 0x600 or 0x3000 <= ord(c) < 0xA000 or 0x1F300 <= ord(c) < 0x1F5FF]
    for name, make in KINDS.items():
        tokenizer = make(texts[:4000], 700)
        specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        strings = texts[4000:4030] + [s for s, _ in zip(RandomStrings("golden " + name, common, texts, specials[:4]), range(120))]
        rows.append({"kind": name, "tokenizer": tokenizer.to_str(), "strings": strings, "results": run_package(tokenizer, strings)[0]})
    data = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()
    pathlib.Path(path).write_bytes(gzip.compress(data, 9, mtime=0))
    print(f"{path}: {len(rows)} tokenizers, {pathlib.Path(path).stat().st_size} bytes", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--show", type=int, default=8, help="differing examples to print")
    parser.add_argument("--golden")
    options = parser.parse_args()
    files = [options.data / name for name in ("shakespeare/input.txt", "wikitext-2/valid.txt", "wikitext-2/test.txt", "ag_news/test.csv")]
    whole = [file.read_text() for file in files]
    texts = [line for text in whole for line in text.split("\n") if line]
    characters = assigned_characters()
    if options.golden:
        golden(options.golden, texts[::3], characters)
    if options.program:
        for name in options.kinds.split(","):
            print(json.dumps(compare(name, options, texts, whole, characters), ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
