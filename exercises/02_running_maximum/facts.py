import kvlab

LAYER, HEAD = 2, 0

layers = set()
weighed = 0  # calls of Weigh in LAYER; all layers do the same
n = []      # tokens in the cache, a call
loops = 0   # bodies of the loop in the call that is looked at
M = []      # before each token of head 0
scores = []


def enter(frame):
    given = kvlab.var(frame, "input")
    layer = kvlab.number(given["layer"])
    layers.add(layer)
    mine = layer == LAYER and kvlab.number(given["first_head"]) == HEAD
    all_heads.enabled = layer == LAYER
    body.enabled = mine
    end.enabled = mine
    if mine:
        n.append(kvlab.number(given["kv"]["tokens"]))


def loop(frame):
    global loops
    loops += 1


def weigh(frame):
    global weighed
    weighed += 1
    if not body.enabled:
        return
    state = frame.read_var("this")
    head = kvlab.items(kvlab.var(frame.older(), "heads"))[HEAD]
    if int(state) == int(head["softmax"].address):
        M.append(None if state["empty"] else kvlab.number(state["M"]))
        scores.append(kvlab.number(frame.read_var("m")))


def finish(frame):
    head = kvlab.items(kvlab.var(frame, "heads"))[HEAD]
    M.append(kvlab.number(head["softmax"]["M"]))


kvlab.on_function("kvlab::OnlineSoftmaxStage::Attend", enter)
body = kvlab.on("score", loop)
all_heads = kvlab.on("rescale", weigh)
end = kvlab.on("normalise", finish)
for watch in (all_heads, body, end):
    watch.enabled = False
kvlab.run()

after = M[1:]
rescales = sum(1 for old, new in zip(after, after[1:]) if new > old)
falls = sum(1 for old, new in zip(after, after[1:]) if new < old)
from_below = -1e9
article = 0
for score in scores:
    if score > from_below:
        from_below = score
        article += 1

kvlab.fact("tokens_at_entry", n[0],
           "when Attend is entered, the token that is being worked on has "
           "already put its K and V into the cache: print input")
kvlab.fact("loop_count", loops,
           "with --tile 1 the stop at [score] came once for every token that "
           "tile names, from token 0 on; the last one is in the cache too")
kvlab.fact("weigh_calls", weighed * len(layers),
           "one call of Attend serves the query heads of one KV head, and "
           "each of them calls Weigh for every tile; the model has 3 layers")
kvlab.fact("rescales", rescales,
           "the states of both heads come to [rescale]; those of head 0 have "
           "this == &heads[0].softmax, and at the first token of a "
           "state `empty` is true")
kvlab.fact("article_rescales", article,
           "the same scores, but no branch for the first token")
kvlab.fact("falls", falls,
           "after each token M was compared with M before it: softmax-state "
           "at two stops one after the other")
kvlab.done()
