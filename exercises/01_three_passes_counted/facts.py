import re

import kvlab

TOKEN, HEAD = 5, 0  # the row and the score that are followed

functions = {}  # the primitives that this run uses, by their name in C++


def find(frame):
    table = frame.read_var("this")["primitives_"]
    for name in ("max", "exp_and_sum", "accumulate_values"):
        functions[name] = re.search(r"<(.*)>$", str(table[name])).group(1)
    return True


attend = kvlab.on_function("kvlab::ThreePass::Attend", find)
kvlab.run()
attend.enabled = False

calls = 0
row_bytes = 0
last_tile = []
rows = {"call": 0, "step": 0}      # of K and V
row_reads = 0                      # of K[TOKEN]
score_at = []
score_reads = 0
scores_read = 0                    # of all scores, in one call


def enter(frame):
    global calls, row_bytes
    calls += 1
    row_bytes = 4 * kvlab.number(kvlab.var(frame, "input")["kv"]["head_dim"])
    one = calls == 1
    for watch in of_scores:
        watch.enabled = one
    for watch in of_rows:
        watch.enabled = True
    allocated.enabled = one


def keys(frame):
    global row_reads
    t, count = (kvlab.number(frame.read_var(v)) for v in ("t", "count"))
    if calls == 1:
        last_tile.append(count)
        row_reads += t <= TOKEN < t + count
    read_rows(count)


def values(frame):
    read_rows(kvlab.number(frame.read_var("count")))


def read_rows(count):
    rows["step"] += count
    if calls == 1:
        rows["call"] += count


def scores(frame):
    head = kvlab.items(kvlab.var(frame, "heads"))[HEAD]
    score_at.append(int(kvlab.items(head["scores"])[TOKEN].address))


def read_scores(first, count):
    global score_reads, scores_read
    scores_read += count
    score_reads += int(first) <= score_at[0] < int(first) + 4 * count


def one_array(frame):
    read_scores(frame.read_var("x"), kvlab.number(frame.read_var("n")))


def weights(frame):
    heads = frame.read_var("heads")
    count = kvlab.number(kvlab.plain(frame.read_var("values"))["tokens"])
    for g in range(kvlab.number(frame.read_var("count"))):
        read_scores(heads[g]["weights"], count)


kvlab.on_function("kvlab::ThreePass::Attend", enter)
of_rows = [kvlab.on_function("kvlab::KvHeadView::Keys", keys),
           kvlab.on_function("kvlab::KvHeadView::Values", values)]
allocated = kvlab.on("scores", scores)
of_scores = [kvlab.on_function(functions["max"], one_array),
             kvlab.on_function(functions["exp_and_sum"], one_array),
             kvlab.on_function(functions["accumulate_values"], weights)]
for watch in of_rows + of_scores + [allocated]:
    watch.enabled = False
kvlab.run()

kvlab.fact("last_tile_tokens", last_tile[-1],
           "a tile has 32 tokens; the tokens of the cache, the one that is "
           "worked on among them, are no multiple of it")
kvlab.fact("reads_of_a_key", row_reads,
           "the calls of dot_keys were given tile after tile, each for all "
           "heads of the group at once")
kvlab.fact("reads_of_a_score", score_reads,
           "the address of the score was inside of what max, exp_and_sum and "
           "accumulate_values were given")
kvlab.fact("score_bytes_read", 4 * scores_read,
           "each head of the group has scores of its own, one float for "
           "every token of the cache")
kvlab.fact("kv_bytes_call", row_bytes * rows["call"],
           "a row has 128 floats; rows of K and rows of V were read, and "
           "both heads used them in the same call")
kvlab.fact("kv_bytes_step", row_bytes * rows["step"],
           "in the decode step Attend was called for every layer and every "
           "KV head")
kvlab.done()
