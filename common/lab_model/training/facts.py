"""Facts as token sequences: templates of facts.json, the words that fill them, and their spans.

The training builds millions of tokens, so every template is tokenised once; filling it in is then
list concatenation. That is exact because Qwen's Split pattern always cuts between a template's
text and a filled-in word (a test compares it with encoding the whole text).
"""

import random
import re

import bpe
import words


class Word:
    """A word or phrase with its tokens at the start of a line (`bare`) and after a space."""

    __slots__ = ("text", "bare", "spaced")

    def __init__(self, text, tokenizer):
        self.text = text
        self.bare = tokenizer.encode(text)
        self.spaced = tokenizer.encode(" " + text)


class Template:
    """A sentence with places for {name}, {value}, {a} and {key}.

    `key` is the word that tells which attribute the sentence is about; it is turned into the place
    {key}, so that its span is known after rendering. In open attributes {noun} is that place.
    """

    def __init__(self, text, key, tokenizer):
        if key is None:
            text = text.replace("{noun}", "{key}")
        else:
            text = re.sub(rf"(?<= ){re.escape(key)}\b", "{key}", text, count=1)
        self.text = text
        self.parts = []                     # token ids, or (place, is there a space before it)
        for part in re.findall(r" ?\{\w+\}|(?:(?! ?\{).)+", text):
            if part.endswith("}"):
                self.parts.append((part.strip(" {}"), part[0] == " "))
            else:
                self.parts += tokenizer.encode(part)

    def render(self, fills, space_first=False):
        """Token ids, and {place: (begin, end)} of the filled-in words.

        `fills` is {place: Word}. `space_first` puts a space before the sentence.
        """
        ids, spans = [], {}
        for i, part in enumerate(self.parts):
            if isinstance(part, int):
                ids.append(part)
                continue
            place, spaced = part
            word = fills[place]
            begin = len(ids)
            ids += word.spaced if spaced or (space_first and i == 0) else word.bare
            spans[place] = (begin, len(ids))
        return ids, spans


class Attribute:
    """One kind of fact: its sentence, the wordings of its question, and its known values."""

    def __init__(self, entry, tokenizer, known_values):
        key = entry.get("key")
        self.id = entry["id"]
        self.is_open = key is None          # the key word is a noun that changes from fact to fact
        self.weight = entry.get("weight", 1.2)
        self.values = known_values
        self.key = None if self.is_open else Word(key, tokenizer)
        self.fact = Template(entry["fact"], key, tokenizer)
        keys = entry.get("question_keys", [None] * len(entry["questions"]))
        self.question_keys = [None if k is None else Word(k, tokenizer) for k in keys]
        self.questions, self.spaced_questions = [], []
        for text, question_key in zip(entry["questions"], keys):
            self.questions.append(Template(text, question_key, tokenizer))
            self.spaced_questions.append(Template(" " + text, question_key, tokenizer))
        held = entry["held_out_question"].replace("{noun}", "{key}")
        self.held_out_question = Template(held, None, tokenizer)


class Fact:
    """One statement: attribute, name, value, and the noun (open attributes only)."""

    __slots__ = ("attribute", "name", "value", "noun")

    def __init__(self, attribute, name, value, noun=None):
        self.attribute, self.name, self.value, self.noun = attribute, name, value, noun

    @property
    def subject(self):
        """What a question asks for; two facts with one subject would contradict each other."""
        about = self.noun.text if self.noun else self.attribute.id
        return self.name.text, about


class World:
    """All words with their tokens: known, made-up for training, and made-up but held out."""

    POOL = 12000            # made-up training names; values and nouns: half as many each
    HELD_POOL = 4000
    HARD_NAMES = 0.4        # share of the training names that are words.hard_name
    MAX_NAME_TOKENS = 7
    MAX_VALUE_TOKENS = 7
    MAX_NOUN_TOKENS = 3

    def __init__(self, tokenizer, seed=1):
        facts = words.FACTS
        self.tokenizer = tokenizer
        self.pieces = tokenizer.letter_pieces()
        known = set(bpe.known_words())
        self.spaced_pieces = [i for token, i in tokenizer.vocab.items()     # no known words
                              if token[0] == bpe.SPACE and token[1:].isalpha()
                              and token[1:].islower() and token[1:] not in known]
        self.names = self.to_words(facts["names"])
        self.common_names = self.names[:100]
        self.held_names = self.to_words(facts["held_out_names"])
        self.nouns = self.to_words(facts["nouns"])
        self.held_nouns = self.to_words(facts["held_out_nouns"])
        self.preambles = facts["preambles"]
        self.attributes = [Attribute(entry, tokenizer, self.to_words(entry["values"]))
                           for entry in facts["attributes"]]
        any_value = [value for attribute in self.attributes for value in attribute.values]
        self.open_attributes = [Attribute(entry, tokenizer, any_value)
                                for entry in facts["open_attributes"]]
        self.articles = {a: Word(a, tokenizer) for a in ("a", "an")}
        self.article_ids = {article.spaced[0] for article in self.articles.values()}
        self.seed = seed
        self._pools = {}

    def to_words(self, texts):
        return [Word(text, self.tokenizer) for text in texts]

    def render(self, template, fact, key=None, space_first=False):
        """Template.render with the words of `fact`; `key` is the question's own key word."""
        fills = {"name": fact.name, "value": fact.value,
                 "a": self.articles[words.article(fact.value.text)],
                 "key": fact.noun or key or fact.attribute.key}
        return template.render(fills, space_first)

    def pool(self, kind, held):
        """Made-up words of a kind ("name", "noun", or a sample value as style), made once."""
        if (kind, held) not in self._pools:
            count = self.HELD_POOL if held else self.POOL
            rng = random.Random(f"{self.seed} {kind} {held}")
            limit = {"name": self.MAX_NAME_TOKENS, "noun": self.MAX_NOUN_TOKENS}
            limit = limit.get(kind, self.MAX_VALUE_TOKENS)
            make = {"name": lambda: self.make_name(rng, held),
                    "noun": lambda: words.base_word(rng, self.pieces)}
            make = make.get(kind, lambda: words.made_up_value(rng, kind, self.pieces))
            pool = []
            while len(pool) < (count if kind == "name" else count // 2):
                word = Word(words.draw(rng, make, held), self.tokenizer)
                if len(word.spaced) <= limit:
                    pool.append(word)
            self._pools[kind, held] = pool
        return self._pools[kind, held]

    def make_name(self, rng, held):
        hard = not held and rng.random() < self.HARD_NAMES
        return (words.hard_name if hard else words.made_up_name)(rng, self.pieces)

    def pick_value(self, rng, attribute, made_up_share, held):
        """A known value of the attribute, or (with the given share) a made-up one in its style."""
        known = rng.choice(attribute.values)
        if rng.random() >= made_up_share:
            return known
        style = "7" if known.text.isdigit() else "Paris" if known.text[0].isupper() else "ramen"
        return rng.choice(self.pool(style, held))

    def pick_noun(self, rng, made_up_share, held):
        if rng.random() < made_up_share:
            return rng.choice(self.pool("noun", held))
        return rng.choice(self.nouns)
