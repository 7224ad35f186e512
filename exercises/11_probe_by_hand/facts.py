"""Dots of a query with keys, from the codes and scales that the program holds."""

import kvlab

LAYER = 2
HEAD = 1  # of the last block
HIDING = 2  # of block 1
found = {}


def dot(codes, scales, kv, t):
    """A q8 dot in the order of the engine: a group of 32 codes after another."""
    key = kvlab.array_at(kv["key_codes"] + t * int(kv["stride"]), len(codes))
    key = [kvlab.number(c) for c in key]
    total = 0.0
    for group, scale in enumerate(scales):
        some = range(32 * group, 32 * group + 32)
        total = kvlab.float32(total + scale * sum(codes[i] * key[i] for i in some))
    return kvlab.float32(
        total * kvlab.number((kv["key_scales"] + t).dereference())
    )


def look(frame):
    first = kvlab.var(frame, "group")["first"]
    if kvlab.number(first["layer"]) != LAYER:
        return False
    for name in ("tokens", "block_tokens", "n_probe"):
        found[name] = kvlab.number(kvlab.var(frame, name))
    reader = kvlab.var(frame, "reader")
    probes = kvlab.items(kvlab.var(frame, "probes"))
    for g, query in enumerate(kvlab.items(reader["quantised_"])):
        codes = kvlab.numbers(query["codes_"])
        scales = kvlab.numbers(query["scales_"])
        found[kvlab.number(first["head"]) + g] = kvlab.numbers(probes[g]), [
            dot(codes, scales, reader["kv_"], t) for t in range(found["tokens"])
        ]
    return HIDING in found


kvlab.on("probe", look, after=True)
kvlab.run()

n, size = found["tokens"], found["block_tokens"]
probes, dots = found[HEAD]


def sampled(block):
    """(step, tokens) of a block."""
    first, last = block * size, min((block + 1) * size, n)
    step = max(1, (last - first) // found["n_probe"])
    return step, list(range(first, last, step))


last_block = len(probes) - 1
step, tokens = sampled(last_block)
best = max(tokens, key=lambda t: dots[t])
probe = probes[last_block]
if abs(dots[best] - probe) > 1e-5 * abs(probe):
    raise kvlab.Mistake(
        "the program's probe of block %d is %.9g, the dots say %.9g"
        % (last_block, probe, dots[best])
    )
seen, dots_there = found[HIDING]
hidden = max(range(size, 2 * size), key=lambda t: dots_there[t])

kvlab.fact(
    "step",
    step,
    f"the call sees {n} tokens in blocks of {size}: the last block begins at "
    f"token {last_block * size}",
)
kvlab.fact(
    "probed",
    len(tokens),
    "a full block gives as many dots as `n_probe`; in the last one the samples go on "
    f"with the same step as long as they are below {n}, whatever their number",
)
kvlab.fact(
    "last_probed",
    tokens[-1],
    f"the samples begin with the block's first token; one step more than the last "
    f"sample is {tokens[-1] + step}, and the cache holds {n} tokens",
)
kvlab.fact(
    "best_token",
    best,
    f"among the dots of layer {LAYER}, head {HEAD} with samples of the last block, "
    f"the smallest is {min(dots[t] for t in tokens):.6g}; the largest is "
    "looked for, and sample j is j steps behind the first",
)
kvlab.fact(
    "probe",
    probe,
    f"the probe of block 0, in layer {LAYER} and head {HEAD}, is "
    f"{probes[0]:.6g}; it is a dot without 1/sqrt(d)",
    within=1e-5,
)
kvlab.fact(
    "hidden_token",
    hidden,
    f"with {len(sampled(1)[1])} samples the probe of block 1 of head {HIDING} is "
    f"{seen[1]:.6g}, with all of its keys it is {dots_there[hidden]:.6g}",
)
kvlab.done()
