# Draws the map of one run after another, and answers by what became of the blocks.
# (By hand: shell day10_sparse_topk ... --map, as the task has it.)
python
import re
import kvlab


def draw(k, use):
    """The map of step 0: {(layer, head): a character a block}, and the blocks of
    the needle."""
    words = kvlab.arguments()
    if "--isa" in words:  # scalar is for stepping; the bits are the same
        at = words.index("--isa")
        del words[at:at + 2]
    words += ["--sparse-k", k, "--importance", use, "--map"]
    text = kvlab.program("day10_sparse_topk", *words)
    calls = {}
    row = r"(?m)^(\d+) +(\d+)(?:-(\d+))? +([IPRx.]+)$"
    for layer, first, last, blocks in re.findall(row, text):
        for head in range(int(first), int(last or first) + 1):
            calls[int(layer), head] = blocks
    first, last = re.search(r" N blocks? (\d+)(?:-(\d+))?", text).groups()
    return calls, range(int(first), int(last or first) + 1)


def answer(**values):
    for name, value in values.items():
        gdb.execute("answer %s %s" % (name, value))


# With k = 1 and no importance the only place is the probe's, and recency takes it.
# Where the context is a multiple of 16 the heads below read too little for a probe
# that finds the needle; a reserved place helps.
for k, use in ((1, "off"), (2, "per-viewer"), (2, "raw"), (2, "off")):
    calls, needle = draw(k, use)
    hits = [(call, b) for call, blocks in calls.items() for b in needle
            if blocks[b] == "x"]
    if hits:
        break
call, block = hits[0]
answer(evicts_k=k, evicts_importance=use, evicts_layer=call[0],
       evicts_head=call[1], evicts_block=block)

# With importance the only place is reserved.
calls, _ = draw(1, "raw")
answer(keeps_k=1, keeps_importance="raw", keeps_block=calls[call].index("I"))

# Between these places and all of them it begins to come in without help.
most = len(calls[call])
while most - k > 1:
    middle = (k + most) // 2
    if draw(middle, use)[0][call][-1] == "R":
        k = middle
    else:
        most = middle
answer(by_itself_k=most, same_probes="[0]")
end
