"""Runs stage 4 with the student's settings, and looks whether the thing asked for
happened. Most questions have several right answers."""

import json
import os
import pathlib
import re
import tempfile

import kvlab

USES = ("raw", "per-viewer", "off")
NEEDLE = "Zara's favorite food is ramen."  # the programs' default
ALL = 64  # places for more blocks than there are

runs = {}


def run(k, importance):
    """The trace of step 0: {"calls": {(layer, head): blocks}, "needle": blocks}."""
    if (k, importance) not in runs:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "trace.json")
            kvlab.program(
                *("day10_sparse_topk", "--threads", "1", "--max-tokens", "2"),
                *("--context", os.environ["KVLAB_CONTEXT"]),
                *("--seed", os.environ["KVLAB_SEED"]),
                *("--block-size", "16", "--sparse-k", str(k)),
                *("--importance", importance, "--trace", str(file)),
                *("--trace-layer", "all", "--trace-head", "all"),
                *("--trace-step", "0"),
            )
            trace = json.loads(file.read_text())
        runs[k, importance] = {
            "calls": {
                (call["layer"], call["head"]): call["blocks"]
                for call in trace["calls"]
            },
            "needle": needle_blocks(trace["tokens"]),
        }
    return runs[k, importance]


def needle_blocks(tokens):
    begin = "".join(tokens).index(NEEDLE)
    at, blocks = 0, set()
    for t, token in enumerate(tokens):
        if at < begin + len(NEEDLE) and at + len(token) > begin:
            blocks.add(t // 16)
        at += len(token)
    return sorted(blocks)


def listed(numbers):
    return ", ".join(map(str, numbers)) or "none"


def evicted(blocks):
    """The block that recency evicted; None: none."""
    for b, block in enumerate(blocks):
        if block["reason"] == "evicted_by_recency":
            return b
    return None


def single(name):
    """The answer's text; of a list, that of its only element; else ""."""
    text = kvlab.answer_of(name)
    if isinstance(text, list):
        text = text[0] if len(text) == 1 else ""
    return text.strip()


def whole(name):
    """The answer as a whole number; None if it is none, or has 10 digits."""
    text = single(name)
    return int(text) if re.fullmatch(r"\+?[0-9]{1,9}", text) else None


def settings(prefix):
    """The run that the student set up, or None; and what is wrong with it."""
    k = whole(prefix + "_k")
    use = single(prefix + "_importance").lower()
    if k is None or not 1 <= k <= 1_000_000:
        return None, f"{prefix}_k is asked for: a whole number, 1 or more"
    if use not in USES:
        return None, f"{prefix}_importance is asked for: {', '.join(USES)}"
    return run(k, use), f"with --sparse-k {k} --importance {use} "


# --- 1. It evicts -----------------------------------------------------------------
case, text = settings("evicts")
call, here = None, []
if case is None:
    told = {name: text for name in ("k", "importance", "layer", "head", "block")}
else:
    calls, needle = case["calls"], case["needle"]
    gone = {id_: evicted(blocks) for id_, blocks in calls.items()}
    here = [id_ for id_, block in gone.items() if block in needle]
    others = sorted({b for b in gone.values() if b is not None and b not in needle})
    taken = sum(blocks[b]["taken"] for blocks in calls.values() for b in needle)
    told = dict.fromkeys(
        ("k", "importance"),
        text + f"recency evicts no block of the needle (number {listed(needle)}) in "
        f"step 0; these were read {taken} times in {len(calls)} calls. Other blocks "
        f"that it evicts: {listed(others)}",
    )
    call = (whole("evicts_layer"), whole("evicts_head"))
    if call not in calls:
        call = None
        told["layer"] = told["head"] = told["block"] = (
            "the trace has the layers 0 to "
            f"{max(c[0] for c in calls)} and the heads 0 to "
            f"{max(c[1] for c in calls)}"
        )
    else:
        last = calls[call][-1]
        told["layer"] = told["head"] = text + (
            f"the last block is number {len(calls[call]) - 1}; in layer "
            f"{call[0]}, head {call[1]} its probe has rank {last['probe_rank']}, "
            f"its reason is {last['reason']}, and recency evicts "
            + ("nothing" if gone[call] is None else f"block {gone[call]}")
        )
        b = whole("evicts_block")
        told["block"] = text + (
            f"there are the blocks 0 to {len(calls[call]) - 1}"
            if b is None or b >= len(calls[call])
            else f"the reason of block {b} in layer {call[0]}, head {call[1]} "
            f"is {calls[call][b]['reason']}"
            + (", but it is none of the needle's" if b == gone[call] else "")
        )
for name in ("k", "importance"):
    kvlab.judge("evicts_" + name, here, told[name])
kvlab.judge("evicts_layer", call and any(c[0] == call[0] for c in here), told["layer"])
kvlab.judge("evicts_head", call in here, told["head"])
kvlab.judge(
    "evicts_block",
    call in here and whole("evicts_block") == gone[call],
    told["block"],
)

# --- 2. It may not ----------------------------------------------------------------
case, text = settings("keeps")
kept, read = False, []
if call is None or case is None:
    told = block_told = text if case is None else "this needs the layer and head of 1"
else:
    blocks = case["calls"][call]
    kept = not blocks[-1]["taken"]
    read = [b for b, block in enumerate(blocks) if block["taken"]]
    b = whole("keeps_block")
    told = text + (
        f"the last block is read in layer {call[0]}, head {call[1]}: by "
        f"{blocks[-1]['reason']}"
    )
    block_told = text + (
        f"there are the blocks 0 to {len(blocks) - 1}"
        if b is None or b >= len(blocks)
        else f"the reason of block {b} in layer {call[0]}, head {call[1]} is "
        f"{blocks[b]['reason']}"
    )
kvlab.judge("keeps_k", kept, told)
kvlab.judge("keeps_importance", kept, told)
kvlab.judge("keeps_block", whole("keeps_block") in read, block_told)

# --- 3. It need not ---------------------------------------------------------------
k = whole("by_itself_k")
use = single("evicts_importance").lower()
if call is None:
    kvlab.judge("by_itself_k", False, "this needs the settings, layer and head of 1")
elif k is None or not 2 <= k <= ALL:
    kvlab.judge("by_itself_k", False, f"a whole number from 2 to {ALL} is asked for")
else:
    before, after = (
        run(some, use)["calls"][call][-1]["reason"] for some in (k - 1, k)
    )
    kvlab.judge(
        "by_itself_k",
        before == "recency" and after in ("importance", "probe"),
        f"the reason of the last block is {before} with {k - 1} places and {after} "
        f"with {k}",
    )

# --- 4. What can be predicted -------------------------------------------------------
one, other = run(1, "off")["calls"], run(ALL, "off")["calls"]
layers = sorted({layer for layer, _ in one})
equal = [
    layer
    for layer in layers
    if all(
        [b["probe"] for b in one[id_]] == [b["probe"] for b in other[id_]]
        for id_ in one
        if id_[0] == layer
    )
]
kvlab.fact(
    "same_probes",
    equal,
    "a probe is a dot of the query. The query of a layer is made of what the layers "
    "below have added to the token, and these have read other blocks",
)
kvlab.done()
