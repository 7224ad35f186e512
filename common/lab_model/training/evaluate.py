"""Measures an exported model: exact answers, and block-sparse and q8 decoding against exact.

    evaluate.py FOLDER [--rows seen,mixed] [--count 200] [--seed 7] [--out results.json]
    evaluate.py FOLDER --fresh

Every prompt of a row comes from a generator seeded with (seed, row, number), so a row can be run
again alone. `--fresh` takes FRESH_SEED, which was written here before any evaluation used it and
which no choice about the model was made on; README.md lists every run of it.
"""

import argparse
import json
import multiprocessing
import random
import re
import time

import torch

import decode
import facts
import prompts
from prompts import Case

FRESH_SEED = 20261201

NEW = {"unseen_name": 1.0, "filler_names": 0.5}
HALF_NEW = {"unseen_name": 0.5, "filler_names": 0.3, "unseen_value": 0.3, "filler_values": 0.3}
ROWS = {
    "seen": Case(),
    "unseen_name": Case(**NEW),
    "unseen_both": Case(**NEW, unseen_value=1.0, filler_values=0.5),
    "mixed": Case(**HALF_NEW, configurations=(32, 16, 8, 4, 1, "q8")),
    "mixed_4096": Case(**HALF_NEW, context=4096),
    "unseen_both_4096": Case(**NEW, unseen_value=1.0, filler_values=0.5, context=4096),
    "default_form": Case(**HALF_NEW, newline_join=0, newline_question=1, preamble=0),
    "other_wording": Case(**HALF_NEW, wording="other"),
    "held_out_wording": Case(**HALF_NEW, wording="held_out"),
    "new_noun": Case(**HALF_NEW, open_attribute=1.0),
    "two_words": Case(**HALF_NEW, two_words=1.0),
    "short": Case(**HALF_NEW, contexts=(64, 96, 128, 192, 256)),
}
MAX_ANSWER = 40

_worker = {}


def start_worker(folder):
    torch.set_num_threads(1)
    model, tokenizer = decode.load(folder)
    _worker.update(model=model, tokenizer=tokenizer,
                   builder=prompts.PromptBuilder(facts.World(tokenizer)))


def holds(text, value):
    """Is the value in the text as a whole word or phrase, in any case?"""
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text, re.IGNORECASE) is not None


def measure(task):
    """One prompt of one row: {what was measured: True or False} and the texts."""
    row, number, count, seed = task
    case = ROWS[row]
    model, tokenizer = _worker["model"], _worker["tokenizer"]
    rng = random.Random(f"{seed} {row} {number}")
    depth = 0.05 + 0.90 * number / max(1, count - 1)
    context = case.contexts[number % len(case.contexts)] if case.contexts else case.context
    prompt = _worker["builder"].build(rng, case, context, depth)
    end = prompt.answer[-1]
    sparse = any(name != "q8" for name in case.configurations)
    prefilled = decode.prefill(model, prompt.ids, with_importance=sparse)
    exact = decode.decode(model, prefilled, MAX_ANSWER, end)
    text = tokenizer.decode(exact)
    result = {"exact": exact == prompt.answer, "value": holds(text, prompt.value)}
    texts = {"expected": tokenizer.decode(prompt.answer), "exact": text}
    for name in case.configurations:
        if name == "q8":
            quantised = decode.prefill(model, prompt.ids, q8=True, with_importance=False)
            out = decode.decode(model, quantised, MAX_ANSWER, end)
        else:
            out = decode.decode(model, prefilled, MAX_ANSWER, end, k_blocks=name)
        label = name if name == "q8" else f"k={name}"
        texts[label] = tokenizer.decode(out)
        result[f"{label} identical"] = out == exact
        result[f"{label} recall"] = holds(texts[label], prompt.value)
    return row, number, result, texts


def report(row, results, seconds):
    """Prints and returns the counts of a row, with the answers that went wrong."""
    counts = {}
    for _, _, result, _ in results:
        for name, ok in result.items():
            counts[name] = counts.get(name, 0) + ok
    print(f"{row}: " + ", ".join(f"{name} {n}/{len(results)}" for name, n in counts.items())
          + f"  ({seconds:.0f} s)", flush=True)
    wrong = [{"number": number, **texts} for _, number, result, texts in results
             if not result["exact"]]
    for texts in wrong[:6]:
        print(f"    {texts['number']}: wanted {texts['expected']!r} got {texts['exact']!r}")
    differing = [{"number": number, **texts} for _, number, result, texts in results
                 if not result.get("k=8 identical", True)]
    return {"prompts": len(results), "counts": counts, "wrong": wrong, "k=8 differs": differing}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="exported model")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--count", type=int, default=200, help="prompts of each row")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--fresh", action="store_true", help="use FRESH_SEED")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", help="JSON file of all counts and wrong answers")
    args = parser.parse_args()
    seed = FRESH_SEED if args.fresh else args.seed
    if seed == FRESH_SEED and not args.fresh:
        parser.error(f"seed {FRESH_SEED} is for --fresh")
    summary = {"seed": seed}
    with multiprocessing.Pool(args.processes, start_worker, [args.folder]) as pool:
        for row in args.rows.split(","):
            started = time.time()
            tasks = [(row, number, args.count, seed) for number in range(args.count)]
            results = pool.map(measure, tasks, chunksize=5)
            summary[row] = report(row, results, time.time() - started)
            if args.out:
                with open(args.out, "w", encoding="utf-8") as file:
                    json.dump(summary, file, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
