"""Every choice of two runs with k = 1: with importance, in the program under gdb,
and without, from a trace."""

import json
import pathlib
import tempfile

import kvlab

RANKED = (1, 0)  # layer and head of block_probe_rank
HEADS = 3 * 4
choices = []
first = {}  # what the choices of the first step knew


def look(frame):
    reasons = [str(r) for r in kvlab.items(kvlab.var(frame, "selection")["reasons"])]
    taken = [
        b
        for b, reason in enumerate(reasons)
        if reason.endswith(("kImportance", "kProbe", "kRecency"))
    ]
    given = kvlab.var(frame, "input")
    position = kvlab.number(given["id"]["position"])
    if len(choices) < HEADS:
        where = tuple(kvlab.number(given["id"][f]) for f in ("layer", "head"))
        first[where] = kvlab.numbers(given["probes"])
        first["importance"] = kvlab.numbers(given["importance"])
    choices.append((position, taken))


kvlab.on("recency", look, after=True)
kvlab.run()

importance = first["importance"]
by_importance = sorted(range(len(importance)), key=lambda b: (-importance[b], b))
block = by_importance[0]
probes = [first[layer, head] for layer in range(3) for head in range(4)]
ranked = first[RANKED]
with_block = sum(taken == [block] for _, taken in choices)
steps = len({position for position, _ in choices})
prompt = choices[0][0]

with tempfile.TemporaryDirectory() as folder:
    trace = pathlib.Path(folder, "trace.json")
    kvlab.program(
        *("day10_sparse_topk", *kvlab.arguments(), "--importance", "off"),
        *("--trace", str(trace), "--trace-layer", "all"),
        *("--trace-head", "all", "--trace-step", "all"),
    )
    calls = json.loads(trace.read_text())["calls"]
off = sorted(
    {b for c in calls for b, block in enumerate(c["blocks"]) if block["taken"]}
)
begin, end = calls[0]["position"] + 1, calls[-1]["position"] + 1

kvlab.fact(
    "block",
    block,
    f"the largest importance of a block is {importance[block]:.6g}, the next "
    f"{importance[by_importance[1]]:.6g}",
)
kvlab.fact(
    "importance_total",
    sum(importance),
    f"the prompt has {prompt} tokens, each was a query in every head of every layer, "
    "and the weights of a query add up to 1; the blocks up to block 2 hold "
    f"{sum(importance[:3]):.6g} of it",
    within=1e-6,
)
kvlab.fact(
    "block_probe_rank",
    sum(p > ranked[block] for p in ranked) + 1,
    f"there the probe of the block is {ranked[block]:.6g}, the largest one "
    f"{max(ranked):.6g}, the smallest {min(ranked):.6g}",
)
kvlab.fact(
    "last_first",
    sum(max(p) == p[-1] for p in probes),
    f"in the first choice the probe of the last block is {probes[0][-1]:.6g} and the "
    f"largest of the others {max(probes[0][:-1]):.6g}; in the last choice of this step "
    f"they are {probes[-1][-1]:.6g} and {max(probes[-1][:-1]):.6g}",
)
kvlab.fact(
    "choices",
    with_block,
    f"this run has {steps} decode steps; importance is the same list in each of them, "
    "for all heads of all layers",
)
kvlab.fact(
    "blocks_off",
    off,
    f"at its first decode step the cache of that run holds {begin} tokens, at its last "
    f"{end}, in blocks of 16; all heads of a step read the same block",
)
kvlab.done()
