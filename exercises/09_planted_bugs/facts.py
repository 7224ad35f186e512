"""What each planted program does, from dumps and traces of the student's run."""

import array
import json
import os
import pathlib
import struct
import tempfile

import kvlab

TILE = 32
SEED = os.environ["KVLAB_SEED"]
CONTEXT = int(os.environ["KVLAB_CONTEXT"])
RIGHT = ("day09_q8_single_pass",)
PLANTED = {
    letter: ("exercise_planted_bugs", "--variant", letter) for letter in "abcd"
}


def attention(dump):
    """[layer][head] of step 0, each its bits."""
    data = dump.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    tensor = json.loads(data[8 : 8 + size])["attention"]
    _, layers, heads, d = tensor["shape"]
    begin = 8 + size + tensor["data_offsets"][0]
    numbers = array.array("I", data[begin : begin + 4 * layers * heads * d])
    rows = [numbers[i : i + d] for i in range(0, len(numbers), d)]
    return [rows[i : i + heads] for i in range(0, len(rows), heads)]


def run(program, context):
    """The attention of step 0, and {(layer, head): its trace}."""
    with tempfile.TemporaryDirectory() as folder:
        dump = pathlib.Path(folder, "dump.safetensors")
        trace = pathlib.Path(folder, "trace.json")
        kvlab.program(
            *program,
            *("--context", str(context), "--seed", SEED),
            *("--max-tokens", "2", "--threads", "1", "--dump", str(dump)),
            *("--trace", str(trace)),
            *("--trace-layer", "all", "--trace-head", "all"),
        )
        calls = json.loads(trace.read_text())["calls"]
        return attention(dump), {
            (call["layer"], call["head"]): call["tiles"] for call in calls
        }


def listed(numbers):
    return ", ".join(map(str, numbers))


# At a whole number of tiles a lost tail loses nothing: one token more.
n = CONTEXT + 1
if n % TILE == 0:
    n += 1
right, right_trace = run(RIGHT, n - 1)
layers = []
for letter, program in PLANTED.items():
    found, trace = run(program, n - 1)
    wrong = [i for i, _ in enumerate(right) if found[i] != right[i]]
    if not wrong:
        raise kvlab.Mistake(f"planted_{letter} computes what the right program does")
    layer = wrong[0]
    layers.append(layer)
    heads = range(len(right[layer]))
    equal = [h for h in heads if found[layer][h] == right[layer][h]]
    M_and_S = [
        [[(tile["M"], tile["S"]) for tile in calls[layer, h]] for h in heads]
        for calls in (right_trace, trace)
    ]
    if equal:
        bug = "query_head"
        seen = f"heads {listed(equal)} of that layer are right to the bit"
        kvlab.fact(
            "equal_heads",
            equal,
            any_order=True,
            seen=f"planted_{letter} first differs at element 0 of head "
            f"{next(h for h in heads if h not in equal)} of layer {layer}",
        )
    elif len(trace[layer, 0]) < len(right_trace[layer, 0]):
        bug = "tail"
        tiles = trace[layer, 0]
        seen = (
            f"in the trace of that layer it has {len(tiles)} tiles, and the right "
            f"program {len(right_trace[layer, 0])}"
        )
        kvlab.fact(
            "lost_tokens",
            n - sum(len(tile["scores"]) for tile in tiles),
            f"in layer {layer} head 0 of planted_{letter} reads its last tile "
            f"from token {tiles[-1]['first_token']} on",
        )
    elif M_and_S[0] == M_and_S[1]:
        bug = "rescale"
        seen = "every M and S of that layer is right, and what comes out is not"
        kvlab.fact(
            "rescales",
            sum(tile["rescaled"] for h in heads for tile in trace[layer, h]),
            f"in head 0 of layer {layer} planted_{letter} goes through "
            f"{len(trace[layer, 0])} tiles; the first never rescales",
        )
    else:
        bug = "key_scale"
        tile, right_tile = trace[layer, 0][0], right_trace[layer, 0][0]
        seen = (
            f"in head 0 of that layer the first tile gives M = {tile['M']:.4g}, "
            f"not {right_tile['M']:.4g}"
        )
    kvlab.fact(
        f"bug_{letter}",
        bug,
        f"with {n} tokens in the cache it first differs in layer {layer}; " + seen,
        words=("rescale", "key_scale", "tail", "query_head"),
    )
kvlab.fact(
    "layers",
    layers,
    "of the layers before the first wrong one, every bit is right; "
    "a layer after it is wrong because it gets wrong input",
)
kvlab.done()
