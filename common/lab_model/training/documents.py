"""Training documents: facts, then questions with their answers, and where attention should look.

A document is one long chat. The first user turn lists the facts and asks a question; the assistant
restates the fact; more turns follow about the same list. Only the answers are learned.

Beside its tokens a document carries *attention targets*, (row, columns, weights), the material of
the auxiliary loss in train.py:

  name   layer 1: from every token of a sentence to the name in it
  key    layer 1: from every token of a sentence to the word that says what it is about
  sharp  last layer: from an answer token to the source of the token that comes next
  broad  last layer: from an answer token to the whole source fact

and its turns, from which `visible_blocks` draws what an answer row may see when blocks are dropped.
"""

import collections
import functools

from facts import Fact

BLOCK = 32                # tokens in a block of the block-sparse decoding
IGNORE = -100             # label of a token that is not learned

Turn = collections.namedtuple("Turn", "answer end source question name_end")
Source = collections.namedtuple("Source", "begin name_end value_begin value_end end")


class Chat:
    """The fixed token sequences of the ChatML form."""

    def __init__(self, tokenizer):
        self.end = tokenizer.added["<|im_end|>"]
        self.newline, = tokenizer.encode("\n")
        self.open = tokenizer.encode("<|im_start|>user\n")
        self.to_assistant = tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n")


class Document:
    """Token ids with labels, value flags and attention targets, grown sentence by sentence."""

    def __init__(self, world, chat):
        self.world, self.chat = world, chat
        self.ids, self.labels, self.is_value = [], [], []
        self.targets = {"name": [], "key": [], "sharp": [], "broad": []}
        self.sources = {}           # index of a fact -> where it is stated
        self.turns = []

    def add(self, ids, learn=False):
        """Appends tokens; with `learn` they are labels of the language-model loss."""
        self.ids += ids
        self.labels += ids if learn else [IGNORE] * len(ids)
        self.is_value += [False] * len(ids)

    # --- attention targets ---------------------------------------------------------------------

    def look_evenly(self, kind, row, columns, window=None):
        """Even weights on `columns`; with a window (first, last), 15 % spread over the window."""
        columns = list(columns)
        weights = [1 / len(columns)] * len(columns)
        if window:
            first, last = window
            count = last - first + 1
            weights = [0.85 * w for w in weights] + [0.15 / count] * count
            columns += range(first, last + 1)
        self.targets[kind].append((row, columns, weights))

    def look_broadly(self, row, source):
        """Half on the value, half on the fact from the end of its name on: any probed key of the
        fact then finds its block."""
        columns = list(range(source.name_end - 1, source.end))
        value_share = 0.5 / (source.value_end - source.value_begin)
        weights = [0.5 / len(columns) + value_share * (source.value_begin <= c < source.value_end)
                   for c in columns]
        self.targets["broad"].append((row, columns, weights))

    def look_sharply(self, row, next_source, around):
        """Three quarters on the source of the next token, the rest over the sentence around it."""
        columns = list(range(*around))
        weights = [0.25 / len(columns)] * len(columns) + [0.75]
        self.targets["sharp"].append((row, columns + [next_source], weights))

    # --- sentences -----------------------------------------------------------------------------

    def statement(self, index, fact, space_first):
        """States fact `index`; the second time it is a restatement, whose value is learned."""
        ids, spans = self.world.render(fact.attribute.fact, fact, space_first=space_first)
        begin = len(self.ids)
        self.add(ids)
        name_end = begin + spans["name"][1]
        key_begin, key_end = (begin + at for at in spans["key"])
        value_begin, value_end = (begin + at for at in spans["value"])
        for row in range(begin, begin + len(ids)):
            self.look_evenly("name", row, range(begin, min(row + 1, name_end)))
            if row >= key_begin:
                self.look_evenly("key", row, range(key_begin, min(row + 1, key_end)))
        if index not in self.sources:
            self.sources[index] = Source(begin, name_end, value_begin, value_end, len(self.ids))
            return
        source = self.sources[index]
        for row in range(value_begin, min(value_end + 1, len(self.ids))):
            self.labels[row] = self.ids[row]
            self.is_value[row] = row < value_end
            copied_from = source.begin + row - begin
            self.look_sharply(row - 1, copied_from, (source.name_end - 1, source.end))
            self.look_broadly(row - 1, source)

    def question_and_answer(self, index, fact, wording, opener, spaced=False, rewording=None):
        """Asks for fact `index` in the given wording; the answer restates it and is learned.

        `rewording(ids, spans)`, if given, changes the words of the question.
        """
        attribute, source = fact.attribute, self.sources[index]
        templates = attribute.spaced_questions if spaced else attribute.questions
        self.add(opener)
        question = len(self.ids)
        key_word = attribute.question_keys[wording]
        ids, spans = self.world.render(templates[wording], fact, key=key_word)
        if rewording:
            ids, spans = rewording(ids, spans)
        self.add(ids)
        asked_name = list(range(question + spans["name"][0], question + spans["name"][1]))
        asked_key = list(range(question + spans["key"][0], question + spans["key"][1]))
        self.add(self.chat.to_assistant)
        answer = len(self.ids)
        for row in range(question, answer):
            for kind, columns in (("name", asked_name), ("key", asked_key)):
                if row >= columns[0]:
                    self.look_evenly(kind, row, [c for c in columns if c <= row])
            if row >= max(asked_name[-1], asked_key[-1]):
                self.look_broadly(row, source)

        ids, spans = self.world.render(attribute.fact, fact)
        self.add(ids + [self.chat.end], learn=True)
        name_end = answer + spans["name"][1]
        key_begin, key_end = (answer + at for at in spans["key"])
        for at in range(*spans["value"]):
            self.is_value[answer + at] = True
        self.look_sharply(answer - 1, asked_name[0], (question, answer))
        for i in range(len(ids)):
            row = answer + i
            own_name = list(range(answer, name_end)) if row >= name_end - 1 else []
            own_key = [c for c in range(key_begin, key_end) if c <= row]
            self.look_evenly("name", row, asked_name + own_name, (question, row))
            self.look_evenly("key", row, asked_key + own_key, (question, row))
            self.look_broadly(row, source)
            if row + 1 < name_end:          # the name is copied from the question
                self.look_sharply(row, asked_name[i + 1], (question, answer))
            elif i + 1 < len(ids):          # the rest from the fact
                self.look_sharply(row, source.begin + i + 1, (source.name_end - 1, source.end))
        self.turns.append(Turn(answer, len(self.ids), source, question, name_end))


class Writer:
    """Draws random facts and writes training documents about them."""

    def __init__(self, world):
        self.world = world
        self.chat = Chat(world.tokenizer)
        self.preambles = [world.tokenizer.encode(text + "\n") for text in world.preambles]
        self.question_mark, = world.tokenizer.encode("?")
        self.full_stop, = world.tokenizer.encode(".")
        self.by_first = collections.defaultdict(list)     # made-up names by their first token
        for name in world.pool("name", False):
            self.by_first[name.spaced[0]].append(name)

    def draw_names(self, rng, count, made_up_share):
        """Distinct names; in a fifth of the documents the made-up ones share first pieces."""
        made_up = self.world.pool("name", False)
        if rng.random() < 0.2:
            groups = [self.by_first[rng.choice(made_up).spaced[0]] for _ in range(3)]
            made_up = [name for group in groups for name in group]
        known = self.world.common_names if rng.random() < 0.3 else self.world.names
        names = {}
        for _ in range(count):
            name = rng.choice(made_up if rng.random() < made_up_share else known)
            names[name.text] = name
        return list(names.values())

    def draw_facts(self, rng, room, facts_per_name):
        """Facts with distinct subjects, about `room` tokens in all."""
        world = self.world
        attributes = world.attributes + world.open_attributes
        made_up_names = rng.choice([0.0, 0.4, 0.7, 1.0, 1.0])
        made_up_values = rng.choice([0.0, 0.2, 0.5, 1.0])
        made_up_nouns = rng.choice([0.2, 0.5, 1.0])
        about = max(3, room // 9)
        name_count = max(2, int(about / facts_per_name))
        if rng.random() < 0.7:              # few attributes: many facts differ by name only
            attributes = rng.sample(attributes, rng.choice([1, 1, 2, 2, 3, 4, 6]))
            name_count = max(name_count, int(about / (0.6 * len(attributes))) + 1)
        weights = [attribute.weight for attribute in attributes]
        names = self.draw_names(rng, name_count, made_up_names)
        facts, subjects, used = [], set(), 0
        for _ in range(20 * about):
            if used >= room:
                break
            attribute, = rng.choices(attributes, weights)
            noun = world.pick_noun(rng, made_up_nouns, False) if attribute.is_open else None
            value = world.pick_value(rng, attribute, made_up_values, False)
            fact = Fact(attribute, rng.choice(names), value, noun)
            if fact.subject in subjects:
                continue
            subjects.add(fact.subject)
            facts.append(fact)
            used += len(fact.name.spaced) + len(fact.value.spaced) + len(attribute.fact.parts) - 2
        return facts

    def reword(self, rng, ids, spans):
        """A question with words left out and others put in: what counts is its name and key word."""
        places = {begin: place for place, (begin, _) in spans.items()}
        inside = {at for begin, end in spans.values() for at in range(begin, end)}
        out, new_spans = [], {}
        for at, token in enumerate(ids):
            if at in places or at not in inside:
                if rng.random() < 0.15:
                    out.append(rng.choice(self.world.spaced_pieces))
            if at in places:
                begin, end = spans[places[at]]
                new_spans[places[at]] = (len(out), len(out) + end - begin)
            if at in inside or rng.random() >= 0.2:
                out.append(token)
        if rng.random() < 0.3 and out[-1] == self.question_mark:
            out[-1] = self.full_stop
        return out, new_spans

    def document(self, rng, length, restate, reword=0.0):
        """A document of at least length + 1 tokens (the reader cuts it).

        With `restate` the assistant turn restates the facts in another order, without questions:
        the densest practice in finding and copying values. `reword` is the share of questions
        whose words are changed at random.
        """
        doc = Document(self.world, self.chat)
        newline_join = rng.random() < 0.4
        share = rng.uniform(0.4, 0.6) if restate else rng.uniform(0.3, 0.7 if length < 1000 else 0.9)
        facts = self.draw_facts(rng, int(length * share), rng.uniform(1.0, 3.0))
        doc.add(self.chat.open)
        if rng.random() < 0.4:
            doc.add(rng.choice(self.preambles))
        for index, fact in enumerate(facts):
            if newline_join and index:
                doc.add([self.chat.newline])
            doc.statement(index, fact, space_first=not newline_join and index > 0)
        order = list(range(len(facts)))
        if restate:
            self.restate(rng, doc, facts, order, length)
        else:
            self.ask(rng, doc, facts, order, length, reword)
        doc.add([self.chat.newline] * (length + 1 - len(doc.ids)))
        return doc

    def restate(self, rng, doc, facts, order, length):
        doc.add(self.chat.to_assistant)
        while len(doc.ids) <= length:
            rng.shuffle(order)
            for index in order:
                newline = rng.random() < 0.5
                if newline:
                    doc.add([self.chat.newline])
                doc.statement(index, facts[index], space_first=not newline)
                if len(doc.ids) > length:
                    return

    def ask(self, rng, doc, facts, order, length, reword):
        rng.shuffle(order)
        for turn, index in enumerate(order):
            wordings = len(facts[index].attribute.questions)
            wording = 0 if rng.random() < 0.45 else rng.randrange(wordings)
            spaced = turn == 0 and rng.random() < 0.3
            opener = [] if spaced else [self.chat.newline]
            opener += self.chat.open if turn else []
            rewording = None
            if reword and rng.random() < reword:
                rewording = functools.partial(self.reword, rng)
            doc.question_and_answer(index, facts[index], wording, opener, spaced, rewording)
            if len(doc.ids) > length:
                return


def blocks_of(begin, end):
    """The numbers of the blocks that hold the tokens begin .. end-1."""
    return set(range(begin // BLOCK, (end - 1) // BLOCK + 1))


def visible_blocks(rng, doc, length):
    """What answer rows may see when blocks are dropped: [(first row, end row, set of blocks)].

    Block-sparse decoding reads a few blocks only, and not always all that hold the needle. So each
    turn keeps any other block with one random chance, and some turns lose the part of the needle
    before its value (those words follow from the question), or only the needle's blocks without
    the value, or the question once the name is written. A row always sees its own block.
    """
    everything = range((length + BLOCK - 1) // BLOCK)
    spans = []
    for turn in doc.turns:
        source = turn.source
        chance = rng.uniform(0.02, 0.4)
        question = blocks_of(turn.question, turn.name_end)
        needle = blocks_of(source.name_end - 1, source.end)
        value = blocks_of(source.value_begin, source.end)
        others = {b for b in everything if rng.random() < chance} - question - needle
        lose_early = rng.random() < 0.4
        seen = value if rng.random() < 0.5 else needle
        early = set() if lose_early else seen
        # The row that predicts the value's first token; "a"/"an" before it depends on the value.
        value_row = turn.answer + source.value_begin - source.begin - 1
        if value_row < len(doc.ids) and doc.ids[value_row] in doc.world.article_ids:
            value_row -= 1
        asked = question if lose_early or rng.random() < 0.8 else set()
        spans.append((turn.answer, turn.name_end, others | question | early))
        spans.append((turn.name_end, value_row, others | asked | early))
        asked = question if rng.random() < 0.8 else set()
        spans.append((value_row, turn.end, others | seen | asked))
    return [(a, min(b, length), blocks) for a, b, blocks in spans if a < min(b, length)]
