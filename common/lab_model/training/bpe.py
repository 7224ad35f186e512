"""Byte-level BPE in the exact style of Qwen's tokenizer.json, and how its merges are learned.

Text is NFC-normalised, cut by Qwen's Split pattern, written in the GPT-2 byte alphabet, and each
cut is merged on its own. The merges are learned in three phases, so that a word splits the same
way with and without the space before it ("Velmora" and " Velmora" differ in the first token only,
which is what makes copying a name from the question easy for a small model):

1. pieces common in made-up words and real names,
2. the words of the fact sentences and the commonest names and values, each to a single token,
3. last of all, the space and the first piece.
"""

import argparse
import collections
import json
import random
import re
import unicodedata

import words

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 3072
PIECE_MERGES = 700        # phase 1
KNOWN_NAMES = 100         # the first names and values of facts.json become single tokens
KNOWN_VALUES = 12
HIGH_RANK = 10 ** 9

# The Split pattern of Qwen's tokenizer.json, and the same for Python's `re`, which has no \p{L}.
QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
              r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_LETTER, _NUMBER = r"[^\W\d_]", r"\d"
PYTHON_SPLIT = re.compile(
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:(?!{_LETTER}|{_NUMBER})[^\r\n])?{_LETTER}+|{_NUMBER}|"
    rf" ?(?:(?!{_LETTER}|{_NUMBER})\S)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")


def byte_alphabet():
    """{byte: printable character}, the table that GPT-2 introduced."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(printable))
    return table


ALPHABET = byte_alphabet()
BYTE_OF = {char: byte for byte, char in ALPHABET.items()}
SPACE = ALPHABET[ord(" ")]


def to_alphabet(text):
    """`text` as UTF-8 bytes, each written as its character of the byte alphabet."""
    return "".join(ALPHABET[byte] for byte in text.encode("utf-8"))


def merge_pair(pieces, pair):
    """`pieces` with every neighbouring `pair` joined, left to right."""
    merged, i = [], 0
    while i < len(pieces):
        if pieces[i:i + 2] == pair:
            merged.append(pieces[i] + pieces[i + 1])
            i += 2
        else:
            merged.append(pieces[i])
            i += 1
    return tuple(merged)


def split_text(text):
    """The pretokens of `text`: Qwen's pattern cuts every character into exactly one of them."""
    return [match.group() for match in PYTHON_SPLIT.finditer(text)]


class Tokenizer:
    """Encodes and decodes; `vocab` is {token: id} with single bytes, merges and added tokens."""

    def __init__(self, merges):
        self.merges = [tuple(pair) for pair in merges]
        self.rank = {pair: i for i, pair in enumerate(self.merges)}
        self.vocab = {}
        for token in [ALPHABET[b] for b in range(256)] + ["".join(m) for m in self.merges]:
            self.vocab.setdefault(token, len(self.vocab))
        self.added = {}
        fillers = [f"<|extra_{i}|>" for i in range(VOCAB_SIZE - len(self.vocab) - len(SPECIALS))]
        for token in SPECIALS + fillers:
            self.added[token] = len(self.vocab) + len(self.added)
        self.token_of = {i: t for table in (self.vocab, self.added) for t, i in table.items()}
        self._cache = {}

    @classmethod
    def load(cls, path):
        """From a merges.json of this module, or from a Hugging Face tokenizer.json."""
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        if isinstance(data, dict):
            data = [m.split(" ") if isinstance(m, str) else m for m in data["model"]["merges"]]
        return cls(data)

    def pieces(self, word):
        """Merges one pretoken (in the byte alphabet), always the pair of lowest rank first."""
        pieces = tuple(word)
        while len(pieces) > 1:
            best = min(zip(pieces, pieces[1:]), key=lambda pair: self.rank.get(pair, HIGH_RANK))
            if best not in self.rank:
                break
            pieces = merge_pair(pieces, best)
        return pieces

    def encode(self, text):
        """Token ids of `text`; the special tokens are recognised."""
        ids = []
        for part in SPECIAL_SPLIT.split(unicodedata.normalize("NFC", text)):
            if part in self.added:
                ids.append(self.added[part])
                continue
            for pretoken in split_text(part):
                if pretoken not in self._cache:
                    pieces = self.pieces(to_alphabet(pretoken))
                    self._cache[pretoken] = [self.vocab[piece] for piece in pieces]
                ids += self._cache[pretoken]
        return ids

    def decode(self, ids):
        """Text of the ids, with U+FFFD for bytes that are no UTF-8."""
        raw = b""
        for token in (self.token_of[i] for i in ids):
            known = token in self.added
            raw += token.encode() if known else bytes(BYTE_OF[char] for char in token)
        return raw.decode("utf-8", "replace")

    def letter_pieces(self):
        """Vocabulary pieces of two to four ASCII letters without a space, for piece_word()."""
        return sorted({t.lower() for t in self.vocab
                       if 2 <= len(t) <= 4 and t.isascii() and t.isalpha()})


# --- learning the merges -----------------------------------------------------------------------


def learn(splits, counts, limit, merges):
    """Greedy BPE: appends up to `limit` merges, until every word of `splits` is one piece.

    `splits` is {word: tuple of pieces} and is updated; a word weighs `counts[word]`.
    """
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for word, pieces in splits.items():
        for pair in zip(pieces, pieces[1:]):
            pairs[pair] += counts[word]
            where[pair].add(word)
    for _ in range(limit):
        pairs = +pairs                      # drops the counts that fell to zero
        if not pairs:
            return
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word in list(where[best]):
            before, after = splits[word], merge_pair(splits[word], best)
            for pair in zip(before, before[1:]):
                pairs[pair] -= counts[word]
            for pair in zip(after, after[1:]):
                pairs[pair] += counts[word]
                where[pair].add(word)
            splits[word] = after
        pairs.pop(best, None)


def known_words(facts=words.FACTS):
    """Words that become single tokens: sentence words, commonest names and values, nouns."""
    texts = list(facts["preambles"]) + ["user assistant a an"]
    for attribute in facts["attributes"] + facts["open_attributes"]:
        texts += [attribute["fact"], *attribute["questions"]]
    text = re.sub(r"\{\w+\}", "Zara", " ".join(texts))
    known = {pretoken.strip() for pretoken in split_text(text)}
    known |= set(facts["names"][:KNOWN_NAMES]) | set(facts["nouns"])
    for attribute in facts["attributes"]:
        known |= set(attribute["values"][:KNOWN_VALUES])
    return sorted(word for word in known if word.isalpha())


def train(seed=0):
    """Learns the merges from made-up words, real names and the words of facts.json."""
    rng = random.Random(seed)
    counts = collections.Counter()
    for i in range(12000):
        word = words.draw(rng, lambda: words.base_word(rng), held=False)
        counts[to_alphabet(words.capital(word) if i % 2 else word)] += 1
    facts = words.FACTS
    for word in facts["names"] + [v for a in facts["attributes"] for v in a["values"]]:
        for part in re.split(r"[-']", word):
            counts[to_alphabet(part)] += 8
    known = [to_alphabet(word) for word in known_words()]
    for word in known:
        counts[word] += 2
    merges = [("'", "s")]
    splits = {word: tuple(word) for word in counts}
    learn(splits, counts, PIECE_MERGES, merges)
    learn({word: splits[word] for word in known}, {word: 1 for word in known}, HIGH_RANK, merges)
    # Phase 3: the space joins the pieces that begin a word, the commonest first.
    tokenizer, first = Tokenizer(merges), collections.Counter()
    for word in counts:
        first[tokenizer.pieces(word)[0]] += counts[word]
    for word in known:
        first[word] += 10 ** 6
    for token in tokenizer.vocab:
        first[token] += token.isascii() and token.isalpha()
    room = VOCAB_SIZE - 256 - len(SPECIALS) - len(merges)
    merges += [(SPACE, piece) for piece, _ in first.most_common(room)]
    return merges


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="merges.json to write")
    args = parser.parse_args()
    merges = train()
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(merges, file, ensure_ascii=False)
    tokenizer = Tokenizer(merges)
    print(f"{len(merges)} merges, {len(tokenizer.vocab)} tokens and "
          f"{len(tokenizer.added)} added tokens -> {args.out}")


if __name__ == "__main__":
    main()
