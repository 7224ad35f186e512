"""Needle prompts for the evaluation: one fact to be found among many, at an exact token count."""

import dataclasses

import documents
from facts import Fact, Word


@dataclasses.dataclass
class Case:
    """What a row of the results table asks for. Shares are chances between 0 and 1."""
    context: int = 2061             # prompt tokens
    contexts: tuple = ()            # or: the length of prompt i is contexts[i % len]
    unseen_name: float = 0.0        # the needle's name is held out
    two_words: float = 0.0          # the needle's name is two names, each held out
    unseen_value: float = 0.0       # the needle's value is a held-out made-up word
    filler_names: float = 0.0       # filler names that are held out
    filler_values: float = 0.0      # filler values that are held out
    wording: str = "first"          # of the question: first, other, held_out
    open_attribute: float = 0.0     # the needle is about a noun that training never saw
    newline_join: float = 0.5       # facts joined by newlines instead of spaces
    newline_question: float = 0.7   # a newline, not a space, before the question
    preamble: float = 0.5
    configurations: tuple = ()      # decodings to compare with exact: block counts, "q8"


@dataclasses.dataclass
class NeedlePrompt:
    ids: list
    answer: list                    # expected tokens, with <|im_end|>
    value: str
    needle: tuple                   # (begin, end) of the needle's tokens in ids


class PromptBuilder:
    MAX_UNSEEN_TOKENS = 6           # pieces of an unseen name or value
    FACTS_PER_NAME = 1.5
    SHORTEST_FACT = 9               # tokens; less room than this cannot be filled

    def __init__(self, world):
        self.world = world
        self.chat = documents.Chat(world.tokenizer)

    def unseen_name(self, rng):
        """A held-out real name or a held-out made-up one, evenly."""
        pool = self.world.held_names if rng.random() < 0.5 else self.world.pool("name", True)
        while True:
            name = rng.choice(pool)
            if len(name.spaced) <= self.MAX_UNSEEN_TOKENS:
                return name

    def draw_fact(self, rng, names, case):
        world = self.world
        attributes = world.attributes + world.open_attributes
        attribute, = rng.choices(attributes, [a.weight for a in attributes])
        noun = world.pick_noun(rng, 0.0, True) if attribute.is_open else None
        value = world.pick_value(rng, attribute, case.filler_values, held=True)
        return Fact(attribute, rng.choice(names), value, noun)

    def draw_needle(self, rng, case):
        world = self.world
        noun = None
        if rng.random() < case.open_attribute:
            attribute = rng.choice(world.open_attributes)
            noun = rng.choice(world.held_nouns + world.pool("noun", True)[:30])
        else:
            attribute, = rng.choices(world.attributes, [a.weight for a in world.attributes])
        unseen = rng.random() < case.unseen_name
        name = self.unseen_name(rng) if unseen else rng.choice(world.names)
        if case.two_words and rng.random() < case.two_words:
            first, second = (rng.choice(world.held_names).text for _ in range(2))
            name = Word(f"{first} {second}", world.tokenizer)
        made_up = 1.0 if rng.random() < case.unseen_value else 0.0
        while True:
            value = world.pick_value(rng, attribute, made_up, held=True)
            if len(value.spaced) <= self.MAX_UNSEEN_TOKENS:
                return Fact(attribute, name, value, noun)

    def question(self, rng, fact, case, spaced):
        """Tokens of the question; `spaced` begins them with a space."""
        attribute = fact.attribute
        if case.wording == "held_out":
            return self.world.render(attribute.held_out_question, fact)[0]
        wording = rng.randrange(1, len(attribute.questions)) if case.wording == "other" else 0
        templates = attribute.spaced_questions if spaced else attribute.questions
        key = attribute.question_keys[wording]
        return self.world.render(templates[wording], fact, key=key)[0]

    def build(self, rng, case, context, depth):
        """A NeedlePrompt of exactly `context` tokens, the needle `depth` (0 .. 1) of the way in."""
        while True:
            prompt = self.try_to_build(rng, case, context, depth)
            if prompt and len(prompt.ids) == context:
                return prompt

    def try_to_build(self, rng, case, context, depth):
        world, chat = self.world, self.chat
        needle = self.draw_needle(rng, case)
        newline_join = rng.random() < case.newline_join
        spaced_question = rng.random() >= case.newline_question and case.wording != "held_out"
        head = list(chat.open)
        if rng.random() < case.preamble:
            head += world.tokenizer.encode(rng.choice(world.preambles) + "\n")
        tail = [] if spaced_question else [chat.newline]
        tail += self.question(rng, needle, case, spaced_question) + chat.to_assistant

        def sentence(fact, first=False):
            space_first = not newline_join and not first
            ids = world.render(fact.attribute.fact, fact, space_first=space_first)[0]
            return [chat.newline] + ids if newline_join and not first else ids

        # The first sentence has no newline before it, hence one more token of room.
        room = context - len(head) - len(tail) - len(sentence(needle)) + int(newline_join)
        fillers = self.fill(rng, needle, room, sentence, case)
        if fillers is None:
            return None
        at = before = 0
        while at < len(fillers) and before < depth * room:
            before += len(sentence(fillers[at]))
            at += 1
        ids = head
        for index, fact in enumerate(fillers[:at] + [needle] + fillers[at:]):
            begin = len(ids)
            ids = ids + sentence(fact, first=index == 0)
            if fact is needle:
                span = (begin, len(ids))
        answer = world.render(needle.attribute.fact, needle)[0] + [chat.end]
        return NeedlePrompt(ids + tail, answer, needle.value.text, span)

    def fill(self, rng, needle, room, sentence, case):
        """Facts of exactly `room` tokens in all, none with the needle's value; None if stuck."""
        if room < 0:
            return None
        names = [needle.name]
        for _ in range(2 + int(room / 11 / self.FACTS_PER_NAME)):
            unseen = rng.random() < case.filler_names
            names.append(self.unseen_name(rng) if unseen else rng.choice(self.world.names))
        subjects, fillers, misses = {needle.subject}, [], 0
        while room:
            fact = self.draw_fact(rng, names, case)
            left = room - len(sentence(fact))
            new = fact.subject not in subjects
            if not new or fact.value.text.lower() == needle.value.text.lower() or not (
                    left == 0 or left >= self.SHORTEST_FACT):
                misses += 1
                if misses > 3000:
                    return None
                continue
            subjects.add(fact.subject)
            fillers.append(fact)
            room = left
        return fillers
