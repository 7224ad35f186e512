"""The words of the little world: facts.json, made-up words, and which words are held out.

A model that has seen every name during training could memorise answers. So one made-up word in
five, and one real name or noun in five, is *held out*: `held_out(word)` is true for it, and the
training documents never contain it. The evaluation asks for exactly those words.
"""

import json
import os
import random
import zlib

FACTS_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "facts.json")


def load_facts(path=FACTS_PATH):
    """Reads facts.json, the one source of names, attributes, questions and preambles."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


FACTS = load_facts()


def held_out(word):
    """True for the fifth of all made-up words, real names and nouns that training never sees."""
    return zlib.crc32(word.lower().encode("utf-8")) % 5 == 0


def article(value):
    """The indefinite article before `value`, by its first letter alone ("an umbrella")."""
    return "an" if value[0].lower() in "aeiou" else "a"


# --- made-up words -----------------------------------------------------------------------------

ONSETS = ("b c d f g h j k l m n p r s t v w z br dr gr kr tr pr bl cl fl gl pl sl st sk sp "
          "th sh ch qu y").split()
NUCLEI = "a e i o u a e i o u ai ea ee ia io oo ou".split()
CODAS = ["", "", "", "", "n", "r", "l", "s", "m", "t", "k", "x", "nd", "rn", "th", "d"]
LETTERS = "aaabccdeeefghiijkklmmnnooopqrrssttuuvwxyyzz"
ACCENTED = "áàâäãåæçčéèêëěíìîïñóòôöõøœřśšúùûüýžłđğışțþð"


def syllable_word(rng):
    """A pronounceable word of one to four syllables, such as "velmora"."""
    count = rng.choices([1, 2, 3, 4], [0.06, 0.50, 0.36, 0.08])[0]
    word = ""
    for i in range(count):
        onset = "" if i == 0 and rng.random() < 0.15 else rng.choice(ONSETS)
        coda = rng.choice(CODAS) if rng.random() < 0.45 else ""
        word += onset + rng.choice(NUCLEI) + coda
    return word if len(word) >= 3 else word + rng.choice("nrlstkm")


def letter_word(rng):
    """Letters in any order, such as "zyxkhe": what no syllable rule would make."""
    word = "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 8)))
    if rng.random() < 0.15:
        at = rng.randrange(len(word))
        word = word[:at] + rng.choice(ACCENTED) + word[at + 1:]
    return word


def mutated_name(rng):
    """A real name with one letter changed, or the halves of two joined: "priva", "okonder"."""
    first, second = (rng.choice(FACTS["names"]).lower() for _ in range(2))
    if rng.random() < 0.5 or len(first) < 4 or len(second) < 4:
        at = rng.randrange(len(first))
        return first[:at] + rng.choice(LETTERS) + first[at + 1:]
    return first[:len(first) // 2] + second[len(second) // 2:]


def piece_word(rng, pieces):
    """One to five random vocabulary pieces in a row, so that any piece may follow any other."""
    count = rng.choices([1, 2, 3, 4, 5], [0.08, 0.32, 0.32, 0.2, 0.08])[0]
    return "".join(rng.choice(pieces) for _ in range(count))


def base_word(rng, pieces=None):
    """One lower-case made-up word. Without `pieces` (before the tokenizer exists) no piece_word."""
    kind = rng.random()
    if pieces and kind < 0.30:
        word = piece_word(rng, pieces)
    elif kind < 0.78:
        word = syllable_word(rng)
    elif kind < 0.88:
        word = letter_word(rng)
    else:
        word = mutated_name(rng)
    return word if len(word) >= 3 else word + syllable_word(rng)


def capital(word):
    """First letter upper case, the rest as it is (str.capitalize would lower the rest)."""
    return word[:1].upper() + word[1:]


def made_up_name(rng, pieces=None):
    """A made-up name; a few have a hyphen, an apostrophe or a family name: "O'Brenka"."""
    name = capital(base_word(rng, pieces))
    kind = rng.random()
    if kind < 0.04:
        return name + "-" + capital(syllable_word(rng))
    if kind < 0.06:
        return name + "-" + syllable_word(rng)
    if kind < 0.10:
        return rng.choice(["O'", "O'", "D'", "L'", "N'", "K'", "T'"]) + name
    if kind < 0.16:
        return name + " " + capital(base_word(rng, pieces))
    return name


def hard_name(rng, pieces):
    """A name of the kinds that a small model copies badly: two words ("Maria Velmo"), an accented
    letter, often the first ("Ștefa", "Okøn"), or many pieces ("Uxcomswor")."""
    kind = rng.random()
    if kind < 0.5:
        first, second = (rng.choice(FACTS["names"]) if rng.random() < 0.5
                         else capital(base_word(rng, pieces)) for _ in range(2))
        return first + " " + second
    if kind < 0.75:
        return capital("".join(rng.choice(pieces) for _ in range(rng.randint(4, 6))))
    word = mutated_name(rng) if rng.random() < 0.5 else base_word(rng, pieces)
    at = rng.choice([0, rng.randrange(len(word)), rng.randrange(len(word))])
    return capital(word[:at] + rng.choice(ACCENTED) + word[at + 1:])


def made_up_value(rng, like, pieces=None):
    """A made-up value in the style of the known value `like`: number, capitalised or not."""
    if like.isdigit():
        return str(rng.randint(2, 9999))
    upper = like[0].isupper()
    if rng.random() < 0.15:
        upper = not upper
    word = base_word(rng, pieces)
    if rng.random() < 0.12:
        word += rng.choice(["-", " ", " "]) + base_word(rng, pieces)
    return capital(word) if upper else word


def draw(rng, make, held):
    """Calls `make()` until the word is on the wanted side of the held-out rule.

    A word of several parts is usable in training only if no part and not the whole is held out.
    """
    while True:
        word = make()
        parts = [word] + [p for p in word.replace("-", " ").replace("'", " ").split() if len(p) > 1]
        if held and held_out(word):
            return word
        if not held and not any(held_out(p) for p in parts):
            return word
