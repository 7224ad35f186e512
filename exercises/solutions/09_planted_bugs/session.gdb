# What does each program hand to the stage in its wrong layer? By hand: stop-at
# q8_single_pass.cpp:score, then p kv, up, p input, and once more in layers 1, 2.
python
import shlex
import kvlab

words = kvlab.arguments()
context = words.index("--context") + 1
# With whole tiles a lost tail loses nothing: one token more.
if (int(words[context]) + 1) % 32 == 0:
    words[context] = str(int(words[context]) + 1)


def position(frame):
    return kvlab.number(kvlab.var(frame, "input")["position"])


def differ(found, bug, layer):
    found.setdefault("bug", bug)
    found.setdefault("layer", layer)


def at_score(frame):
    if position(frame) != int(words[context]):
        return True  # the second decode step
    given = kvlab.var(frame, "input")
    kv, layer = given["kv"], kvlab.number(given["layer"])
    lost = position(frame) + 1 - kvlab.number(kv["tokens"])
    if lost:
        differ(found, "tail", layer)
        found["lost"] = lost
    if kv["key_scales"] == kv["value_scales"]:
        differ(found, "key_scale", layer)
    # The stage's queries beside those that the engine gave.
    right = kvlab.numbers(kvlab.var(frame.older(), "input")["queries"])
    wrong = kvlab.numbers(given["queries"])
    if right != wrong:
        differ(found, "query_head", layer)
        half = len(right) // 2
        first = kvlab.number(given["first_head"])
        equal = first if right[:half] == wrong[:half] else first + 1
        found.setdefault("equal", set()).add(equal)


def before(frame):
    found["acc"] = kvlab.numbers(kvlab.var(frame, "this")["acc"])


def behind(frame):
    step = kvlab.var(frame, "step")
    if not step["rescaled"]:
        return
    acc = kvlab.numbers(kvlab.var(frame, "this")["acc"])
    if acc == found["acc"]:
        layer = kvlab.number(kvlab.var(frame, "input")["layer"])
        differ(found, "rescale", layer)
        found["rescales"] = found.get("rescales", 0) + 1


kvlab.on("q8_single_pass.cpp:score", at_score)
kvlab.on("rescale", before)
kvlab.on("weights", behind)
layers = []
for letter in "abcd":
    found = {}
    words[words.index("--variant") + 1] = letter
    gdb.execute("set args " + shlex.join(words))
    kvlab.run()
    gdb.execute('answer bug_%s "%s"' % (letter, found["bug"]))
    layers.append(found["layer"])
    if "lost" in found:
        gdb.execute("answer lost_tokens %d" % found["lost"])
    if "equal" in found:
        gdb.execute("answer equal_heads %s" % sorted(found["equal"]))
    if "rescales" in found:
        gdb.execute("answer rescales %d" % found["rescales"])
gdb.execute("answer layers %s" % layers)
end
