"""Quick tests of the data side: plain Python, no PyTorch.  python3 test_training.py"""

import os
import random
import re
import string
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import bpe  # noqa: E402
import documents  # noqa: E402
import facts  # noqa: E402
import prompts  # noqa: E402
import words  # noqa: E402

TOKENIZER_JSON = os.path.join(HERE, "..", "tokenizer.json")


def make_tokenizer():
    """The shipped tokenizer, or a freshly learned one where there is none yet."""
    if os.path.exists(TOKENIZER_JSON):
        return bpe.Tokenizer.load(TOKENIZER_JSON)
    return bpe.Tokenizer(bpe.train())


TOKENIZER = make_tokenizer()
WORLD = facts.World(TOKENIZER)
WRITER = documents.Writer(WORLD)


class FactsTest(unittest.TestCase):
    def test_schema(self):
        data = words.FACTS
        for name in ("names", "attributes", "preambles", "held_out_names", "nouns"):
            self.assertTrue(data[name], name)
        ids = [entry["id"] for entry in data["attributes"]]
        self.assertEqual(len(ids), len(set(ids)))
        for entry in data["attributes"]:
            with self.subTest(entry["id"]):
                self.assertTrue(entry["fact"].startswith("{name}"))
                self.assertTrue(entry["fact"].endswith("{value}."))
                self.assertIn(entry["key"], entry["fact"])
                self.assertTrue(2 <= len(entry["questions"]) <= 4)
                self.assertEqual(len(entry["questions"]), len(entry["question_keys"]))
                for question, key in zip(entry["questions"], entry["question_keys"]):
                    self.assertIn("{name}", question)
                    self.assertRegex(question, rf" {key}\b")
                self.assertNotIn(entry["held_out_question"], entry["questions"])
                self.assertEqual(len(entry["values"]), len(set(entry["values"])))
                self.assertGreater(entry["weight"], 0)
                places = set(re.findall(r"\{(\w+)\}", entry["fact"] + entry["questions"][0]))
                self.assertLessEqual(places, {"name", "value", "a"})

    def test_zara_eats_ramen(self):
        self.assertIn("Zara", words.FACTS["names"])
        food, = (entry for entry in words.FACTS["attributes"] if entry["id"] == "food")
        self.assertIn("ramen", food["values"])
        self.assertEqual(food["questions"][0], "What is {name}'s favorite food?")
        self.assertEqual(food["fact"], "{name}'s favorite food is {value}.")

    def test_held_out_lists_follow_the_rule(self):
        data = words.FACTS
        for name in data["held_out_names"] + data["held_out_nouns"]:
            self.assertTrue(words.held_out(name), name)
        for noun in data["nouns"]:
            self.assertFalse(words.held_out(noun), noun)
        self.assertFalse(set(data["names"]) & set(data["held_out_names"]))

    def test_two_tokens_between_name_and_value(self):
        # Block probing reads every fourth key: four tokens of a fact hold one of them.
        rng = random.Random(1)
        for attribute in WORLD.attributes + WORLD.open_attributes:
            noun = rng.choice(WORLD.nouns)
            fact = facts.Fact(attribute, WORLD.names[0], attribute.values[0],
                              noun if attribute.is_open else None)
            _, spans = WORLD.render(attribute.fact, fact)
            self.assertGreaterEqual(spans["value"][0] - spans["name"][1], 2, attribute.id)


class TokenizerTest(unittest.TestCase):
    def round_trip(self, text):
        self.assertEqual(TOKENIZER.decode(TOKENIZER.encode(text)), text)

    def test_round_trips(self):
        for text in ["Zara's favorite food is ramen.", "O'Brien, Anna-Lena & Søren: 4 821?!\n\n",
                     "  two  spaces\tand a tab ", "日本語 emoji 🍜 and a lone ' mark",
                     "<|im_start|>user\nHi<|im_end|>\n", string.printable]:
            self.round_trip(text)

    def test_every_character_is_in_one_pretoken(self):
        for text in [string.printable, "a'Sb 'll'x  \n \n12½ née"]:
            self.assertEqual("".join(bpe.split_text(text)), text)

    def test_digits_are_cut_one_by_one(self):
        self.assertEqual(bpe.split_text(" 42"), [" ", "4", "2"])

    def test_space_changes_the_first_piece_only(self):
        rng = random.Random(2)
        for _ in range(200):
            name = words.made_up_name(rng, WORLD.pieces)
            bare, spaced = TOKENIZER.encode(name), TOKENIZER.encode(" " + name)
            self.assertEqual(bare[1:], spaced[-len(bare) + 1:] if len(bare) > 1 else [], name)

    def test_known_words_are_single_tokens(self):
        for word in bpe.known_words():
            self.assertEqual(len(TOKENIZER.encode(" " + word)), 1, word)

    def test_ids_fill_the_vocabulary(self):
        ids = sorted([*TOKENIZER.vocab.values(), *TOKENIZER.added.values()])
        self.assertEqual(ids, list(range(bpe.VOCAB_SIZE)))


class DocumentsTest(unittest.TestCase):
    def documents(self, count, length, seed=3):
        rng = random.Random(seed)
        for number in range(count):
            yield WRITER.document(rng, length, restate=number % 3 == 0)

    def test_tokens_are_those_of_the_whole_text(self):
        for doc in self.documents(25, 500):
            self.assertEqual(TOKENIZER.encode(TOKENIZER.decode(doc.ids)), doc.ids)

    def test_held_out_words_never_appear(self):
        data = words.FACTS
        never = set(data["held_out_names"] + data["held_out_nouns"])
        # One held-out name, Ling, is half of a listed one: its letters are seen, but in
        # Mei-Ling alone.
        never -= {part for name in data["names"] if "-" in name for part in name.split("-")}
        known = {part for entry in [*data["attributes"], *data["open_attributes"]]
                 for text in [entry["fact"], *entry["questions"], *entry.get("values", [])]
                 for part in re.findall(r"\w+", text)}
        known |= {part for name in data["names"] for part in re.findall(r"\w+", name)}
        known |= {part for text in data["preambles"] for part in re.findall(r"\w+", text)}
        known |= set(data["nouns"]) | {"user", "assistant", "im_start", "im_end", "a", "an"}
        for doc in self.documents(80, 500):
            text = TOKENIZER.decode(doc.ids[:doc.ids.index(documents.Chat(TOKENIZER).end)])
            for word in set(re.findall(r"[^\W\d_]{3,}", text)):
                self.assertNotIn(word, never)
                if word not in known and word.lower() not in known:
                    self.assertFalse(words.held_out(word), word)

    def test_held_out_questions_never_appear(self):
        held = [entry["held_out_question"] for entry in words.FACTS["attributes"]]
        starts = {question.split("{name}")[0] for question in held}
        trained = {question.split("{name}")[0] for entry in words.FACTS["attributes"]
                   for question in entry["questions"]}
        for doc in self.documents(25, 500):
            text = TOKENIZER.decode(doc.ids)
            for start in starts - trained:
                self.assertNotIn("\n" + start, text)

    def test_answers_are_learned_and_targets_look_back(self):
        for doc in self.documents(30, 400):
            for turn in doc.turns:
                self.assertEqual(doc.labels[turn.answer:turn.end], doc.ids[turn.answer:turn.end])
            for rows in doc.targets.values():
                for row, columns, weights in rows:
                    self.assertLessEqual(max(columns), row)
                    self.assertAlmostEqual(sum(weights), 1.0, places=6)

    def test_a_row_never_loses_everything(self):
        rng = random.Random(4)
        for doc in self.documents(30, 400):
            for begin, end, _ in documents.visible_blocks(rng, doc, 400):
                self.assertTrue(0 < begin < end <= 400)


class PromptsTest(unittest.TestCase):
    def test_prompts_are_exact_and_hold_one_needle(self):
        builder = prompts.PromptBuilder(WORLD)
        case = prompts.Case(unseen_name=0.5, unseen_value=0.3, filler_names=0.3,
                            filler_values=0.3)
        for number, context in enumerate([64, 96, 128, 256, 700, 2061]):
            rng = random.Random(number)
            prompt = builder.build(rng, case, context, 0.5)
            self.assertEqual(len(prompt.ids), context)
            text, answer = TOKENIZER.decode(prompt.ids), TOKENIZER.decode(prompt.answer[:-1])
            self.assertEqual(text.count(answer), 1)
            self.assertEqual(TOKENIZER.encode(text), prompt.ids)


if __name__ == "__main__":
    unittest.main()
