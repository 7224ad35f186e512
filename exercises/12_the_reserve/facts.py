"""The four places of one choice, told from its probes and importance alone."""

import kvlab

LAYER, HEAD = 2, 3
HEADS = 3 * 4
choice = {}
read = []  # the blocks of each choice of the first step


def order(values):
    """Blocks, largest first; of equals the smaller one."""
    return sorted(range(len(values)), key=lambda b: (-values[b], b))


def look(frame):
    given = kvlab.var(frame, "input")
    reasons = [str(r) for r in kvlab.items(kvlab.var(frame, "selection")["reasons"])]
    read.append(
        {
            b
            for b, reason in enumerate(reasons)
            if reason.endswith(("kImportance", "kProbe", "kRecency"))
        }
    )
    id_ = given["id"]
    if [kvlab.number(id_[f]) for f in ("layer", "head")] == [LAYER, HEAD]:
        choice["k"] = kvlab.number(given["k"])
        choice["probes"] = kvlab.numbers(given["probes"])
        choice["importance"] = kvlab.numbers(given["importance"])
    return len(read) == HEADS


kvlab.on("recency", look, after=True)
kvlab.run()

k, probes = choice["k"], choice["probes"]
by_probe, by_importance = order(probes), order(choice["importance"])
last = len(probes) - 1


def with_recency(reserved, filled):
    """(blocks that are read, the evicted one or -1)."""
    if last in reserved + filled or not filled:
        return sorted(reserved + filled), -1
    return sorted(reserved + filled[:-1] + [last]), filled[-1]


budget = (k + 1) // 2
reserved = by_importance[:budget]
filled = [b for b in by_probe if b not in reserved][: k - budget]
taken, evicted = with_recency(reserved, filled)
if set(taken) != read[-1]:
    raise kvlab.Mistake(
        "layer %d, head %d read %s, expected %s"
        % (LAYER, HEAD, sorted(read[-1]), taken)
    )
alone, _ = with_recency([], by_probe[:k])
at_7 = by_importance[: (7 + 1) // 2]
ranks = sorted(by_probe.index(b) + 1 for b in reserved)

kvlab.fact(
    "reserved_blocks",
    reserved,
    f"the largest importance of a block is {choice['importance'][reserved[0]]:.6g}, "
    f"the least that got a reserved place is {choice['importance'][reserved[-1]]:.6g}",
)
kvlab.fact(
    "filled_blocks",
    filled,
    f"the probes that got a place here are {probes[filled[0]]:.6g} and "
    f"{probes[filled[1]]:.6g}, in this order; what is reserved takes no part",
)
kvlab.fact(
    "evicted",
    evicted,
    f"the probe of the last block is {probes[last]:.6g}; the smaller one of the two "
    f"that [fill] gave a place to is {probes[filled[-1]]:.6g}",
)
kvlab.fact(
    "without_reserve",
    alone,
    f"of the blocks that are read now, {len(set(taken) & set(alone))} would be read "
    f"then too; the fourth of the probes in size is {probes[by_probe[k - 1]]:.6g}",
)
kvlab.fact(
    "reserved_at_7",
    at_7,
    "half of the places are reserved, rounded up; the least importance that gets in "
    f"is {choice['importance'][at_7[-1]]:.6g}",
)
kvlab.fact(
    "blocks_read",
    len(set().union(*read)),
    f"the {HEADS} choices read {k * HEADS} blocks, many of them the same; the numbers "
    f"of the different ones add up to {sum(set().union(*read))}",
)
kvlab.done()
