"""What the single pass does once, for each tile, and for each token."""

import gdb
import kvlab

passes = {"quantise_q": 0, "score": 0, "rescale": 0, "normalise": 0}
tiles = []  # tokens of each, in the first call
queries = 0  # quantised in the first decode step
keys = 0
key_scales = []
q_seen = []  # the codes and scales of the first head's query, at each tile


def first_call(frame):
    given = kvlab.var(frame, "input")
    return not (kvlab.number(given["layer"]) or kvlab.number(given["first_head"]))


def counter(marker):
    def handler(frame):
        query.enabled = True
        passes[marker] += first_call(frame)

    return handler


def score(frame):
    if not first_call(frame):
        return
    tiles.append(kvlab.number(kvlab.var(frame, "tokens")))
    q = kvlab.items(kvlab.var(frame, "heads"))[0]["q"]
    q_seen.append(
        [kvlab.number(x) for x in kvlab.items(q["codes_"]) + kvlab.items(q["scales_"])]
    )
    if not key_scales:
        kv = kvlab.var(frame, "kv")
        n = kvlab.number(kv["tokens"])
        key_scales.extend(map(kvlab.number, kvlab.array_at(kv["key_scales"], n)))


class Quantised(gdb.Breakpoint):
    """Counts queries as they are quantised, and not as they are copied. Prefill
    quantises those of the prompt: it stops from the first call on only."""

    def __init__(self):
        super().__init__(
            "kvlab::QuantisedQuery::QuantisedQuery"
            "(kvlab::Primitives const&, float const*, int)",
            internal=True,
        )
        self.enabled = False

    def stop(self):
        global queries
        queries += 1
        return False


def appended(frame):
    global keys
    layer = kvlab.number(kvlab.var(frame, "layer"))
    if layer == 0 and queries:
        return True  # the second decode step begins
    if kvlab.number(kvlab.var(frame, "count")) == 1:
        keys += kvlab.number(kvlab.var(frame, "this")["shape_"]["kv_heads"])
    return False


query = Quantised()
for marker in passes:
    file = "online_softmax.cpp" if marker == "rescale" else "q8_single_pass.cpp"
    kvlab.on(f"{file}:{marker}", counter(marker))
kvlab.on("q8_single_pass.cpp:score", score)
kvlab.on_function("kvlab::KvCache::Append", appended)
kvlab.run()

n = sum(tiles)
group = passes["rescale"] // len(tiles)


def larger(factor, end=n):
    return sum(scale > factor * key_scales[0] for scale in key_scales[:end])


kvlab.fact(
    "quantise_q",
    passes["quantise_q"],
    "the marker stands before the loops over the heads and over the tiles, and was "
    "not reached again after the first tile",
)
kvlab.fact(
    "score",
    passes["score"],
    f"the {n} tokens come in tiles of up to {max(tiles)}; at each stop `scores` had "
    f"the {group} heads together",
)
kvlab.fact(
    "rescale",
    passes["rescale"],
    f"each of the {group} heads has an M of its own, and `Weigh` comes to the marker "
    "before it asks whether M grows",
)
kvlab.fact(
    "normalise",
    passes["normalise"],
    "the marker stands behind the loop over the tiles, before that over the heads",
)
kvlab.fact(
    "queries",
    queries,
    f"one call quantises the queries of {group} heads, before its first tile",
)
kvlab.fact(
    "keys",
    keys,
    "in a decode step each layer appends one token, with one key and one value "
    "for each KV head; what it appended before stays",
)
kvlab.fact(
    "key_scale_uses",
    group * n,
    f"in the call the tiles have {', '.join(map(str, tiles))} tokens; every head "
    "has a score of every token",
)
kvlab.fact(
    "too_large",
    larger(1),
    # Not beyond 127.5: such a quotient is rounded to 127.
    "that many have an element whose quotient is rounded to 128 or more; a scale "
    "that is larger by less counts too"
    if kvlab.answer_of("too_large") == str(larger(127.5 / 127))
    else "token 0 has the scale %.6g; of the keys of tokens 1 to 31, %d have a larger "
    "one" % (key_scales[0], larger(1, 32)),
)
kvlab.fact(
    "why",
    "one_query" if len(set(key_scales)) > 1 and all(q == q_seen[0] for q in q_seen) else "-",
    f"at all {len(tiles)} tiles the codes and scales of q are the same; the "
    f"largest key scale is {max(key_scales) / min(key_scales):.3g} times the "
    "smallest",
    words=("one_query", "small_error", "same_range", "no_room"),
)
kvlab.done()
