import kvlab

LAYER, HEAD = 2, 0

last = {}  # what the last rescale of the head did
S_end = []


def enter(frame):
    given = kvlab.var(frame, "input")
    mine = (kvlab.number(given["layer"]) == LAYER and
            kvlab.number(given["first_head"]) == HEAD)
    for watch in (before, after, end):
        watch.enabled = mine


def of_head(frame):
    head = kvlab.items(kvlab.var(frame.older(), "heads"))[HEAD]
    return int(frame.read_var("this")) == int(head["softmax"].address)


def rescaled(frame):
    """The branch is behind us, the weights are still to come."""
    step = frame.read_var("step")
    if not step["rescaled"] or not of_head(frame):
        return
    last.clear()
    last["t"] = kvlab.number(kvlab.var(frame, "t"))
    last["M_before"] = kvlab.number(step["M_before"])
    last["factor"] = kvlab.number(step["factor"])


def weighed(frame):
    if "S" in last or not last or not of_head(frame):
        return
    state = frame.read_var("this")
    last["M"] = kvlab.number(state["M"])
    last["S"] = kvlab.number(state["S"])


def finish(frame):
    head = kvlab.items(kvlab.var(frame, "heads"))[HEAD]
    S_end.append(kvlab.number(head["softmax"]["S"]))
    return True


kvlab.on_function("kvlab::OnlineSoftmaxStage::Attend", enter)
before = kvlab.on("weights", rescaled)
after = kvlab.on("weights", weighed, after=True)
end = kvlab.on("normalise", finish)
for watch in (before, after, end):
    watch.enabled = False
kvlab.run()

kvlab.fact("last_rescale_token", last["t"],
           "after that token no score of head 0 was larger than M; and at that "
           "token step.rescaled was true (its number is t, in Attend)")
kvlab.fact("M_before", last["M_before"],
           "before the branch of that token M was the largest score of all "
           "tokens so far", within=1e-5)
kvlab.fact("M_after", last["M"],
           "after the branch M was the token's own score, m", within=1e-5)
kvlab.fact("factor", last["factor"],
           "the branch computed exp of a negative number: the old maximum "
           "minus the new one", within=1e-4)
kvlab.fact("S_after", last["S"],
           "S was first multiplied by the factor, and then the weight of the "
           "token was added: exp(score - M), where M is its score",
           within=2e-6)
kvlab.fact("share", 1 / S_end[0],
           "at [normalise] S held the weights of all tokens, relative to the "
           "last M; the token's own weight is exp(0)", within=1e-4)
kvlab.done()
