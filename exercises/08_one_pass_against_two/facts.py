"""Rows of K and V that each form reads in one call, and the scores it keeps."""

import json
import os
import pathlib
import tempfile

import gdb
import kvlab

PROMPT = ("--context", os.environ["KVLAB_CONTEXT"])
PROMPT += ("--seed", os.environ["KVLAB_SEED"])

# --- The cache and the single pass, from its report and its trace -------------
with tempfile.TemporaryDirectory() as folder:
    trace = pathlib.Path(folder, "trace.json")
    report = json.loads(
        kvlab.program(
            *("day09_q8_single_pass", *PROMPT, "--threads", "1"),
            *("--max-tokens", "2", "--json", "--trace", str(trace)),
        )
    )
    model = json.loads(trace.read_text())
tiles = [len(tile["scores"]) for tile in model["calls"][0]["tiles"]]
n = sum(tiles)
group = model["heads"] // model["kv_heads"]
# K and V of every layer and KV head; the last of two tokens is not cached.
rows = 2 * model["layers"] * model["kv_heads"] * n
row_bytes = report["kv"]["bytes"] // rows
assert row_bytes * rows == report["kv"]["bytes"]

# --- Two passes, counted in the running program -------------------------------
calls = []  # the first: stored; the second, of the next KV head, is made to rescan


class Rows(gdb.Breakpoint):
    """Adds up what a function of TileReader is asked for. Prefill asks it too: it
    stops from the first call on only."""

    def __init__(self, function, kind):
        super().__init__("kvlab::TileReader::" + function, internal=True)
        self.enabled = False
        self.kind = kind

    def stop(self):
        count = kvlab.var(gdb.newest_frame(), "count")
        calls[-1][self.kind].append(kvlab.number(count))
        return False


readers = [Rows("Scores", "keys"), Rows("AddValues", "values")]


def begins(frame):
    if len(calls) == 2:
        return True
    rescan = kvlab.var(frame, "this")["rescan_"]
    gdb.selected_inferior().write_memory(
        int(rescan.address), bytes([len(calls)])
    )
    calls.append({"keys": [], "values": [], "scores": 0})
    for reader in readers:
        reader.enabled = True
    return False


def kept(frame):
    heads = kvlab.items(kvlab.var(frame, "heads"))
    calls[-1]["scores"] = sum(len(kvlab.items(h["scores"])) for h in heads)


kvlab.on_function("kvlab::TwoPass::Attend", begins)
kvlab.on("two_pass.cpp:weights_and_values", kept)
kvlab.run()
stored, rescan = calls


def read(call):
    return row_bytes * (sum(call["keys"]) + sum(call["values"]))


kvlab.fact(
    "single_bytes",
    row_bytes * 2 * n,
    f"in the trace of head 0 there are {len(tiles)} tiles, the last one with "
    f"{tiles[-1]} scores; --json says {report['kv']['bytes']} bytes for "
    f"{model['layers']} layers and {model['kv_heads']} KV heads, K and V",
)
kvlab.fact(
    "stored_bytes",
    read(stored),
    f"in the call it asked {len(stored['keys'])} times for the scores of a tile "
    f"and {len(stored['values'])} times for its values",
)
kvlab.fact(
    "rescan_bytes",
    read(rescan),
    f"in the call it asked {len(rescan['keys'])} times for the scores of a tile "
    f"and {len(rescan['values'])} times for its values",
)
kvlab.fact(
    "single_kept",
    4 * max(tiles) * group,
    f"{group} heads have an array of their own each; no tile has more scores "
    f"than fit into it, and no tile of the trace has more than {max(tiles)}",
)
kvlab.fact(
    "stored_kept",
    4 * stored["scores"],
    f"the vectors `scores` of the {group} heads have {stored['scores']} "
    "elements together",
)
keys = {"single": n, "stored": sum(stored["keys"]), "rescan": sum(rescan["keys"])}
kvlab.fact(
    "twice",
    next(form for form, count in keys.items() if count == 2 * n),
    f"the form that is asked for read {2 * n} rows of K in a call over {n} tokens, "
    f"but only {n} rows of V",
    words=("single", "stored", "rescan"),
)
kvlab.done()
