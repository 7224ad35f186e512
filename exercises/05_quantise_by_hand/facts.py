"""Row 100 of K before it was quantised and as it is in the cache."""

import math

import kvlab

LAYER, TOKEN = 1, 100
x = []
codes = []
scale = 0.0


def appended(frame):
    if x or kvlab.number(kvlab.var(frame, "layer")) != LAYER:
        return
    shape = kvlab.var(frame, "this")["shape_"]
    d = int(shape["head_dim"])
    # [token][KV head][d]: of KV head 0
    row = kvlab.var(frame, "k")["_M_ptr"] + TOKEN * int(shape["kv_heads"]) * d
    x.extend(map(kvlab.number, kvlab.array_at(row, d)))


def scored(frame):
    global scale
    if kvlab.number(kvlab.var(frame, "input")["layer"]) != LAYER:
        return False
    kv = kvlab.var(frame, "kv")
    start = kv["key_codes"] + TOKEN * int(kv["stride"])
    codes.extend(map(kvlab.number, kvlab.array_at(start, len(x))))
    scale = kvlab.number(kv["key_scales"][TOKEN])
    return True


kvlab.on_function("kvlab::KvCache::Append", appended)
kvlab.on("score", scored)
kvlab.run()

# As the quantiser divides, and gdb: float by float. In double some quotient that
# is -127 is a little above it.
quotients = [kvlab.float32(value / scale) for value in x]
errors = [abs(q - code) for q, code in zip(quotients, codes)]
largest = max(range(len(x)), key=lambda i: abs(x[i]))
worst = max(range(len(x)), key=errors.__getitem__)


def shown(values, form):
    return ", ".join(form % value for value in values)


def cut_off():
    """The count, and what to say of another one."""

    def others(cut, values):
        return [cut(value) != code for value, code in zip(values, codes)]

    changed = others(int, quotients)
    right = sum(changed)
    given = kvlab.answer_of("cut_off")
    doubles = others(int, [value / scale for value in x])
    for count, seen in (
        (
            sum(doubles),
            "that is the number for a division in double; the program divides "
            "float by float, and the quotient of element %d is exactly %d"
            % next(
                ((i, codes[i]) for i, c in enumerate(doubles) if c != changed[i]),
                (0, 0),
            ),
        ),
        (
            sum(others(math.floor, quotients)),
            "that is the number for rounding down; a cast makes -3.6 a -3",
        ),
        (len(x) - right, "that many of the codes would be the same"),
    ):
        if count != right and given == str(count):
            return right, seen
    return right, "of the first 32 elements it would be %d, of the last 32 %d" % (
        sum(changed[:32]),
        sum(changed[-32:]),
    )


kvlab.fact(
    "largest",
    largest,
    f"the elements of the row go from {min(x):.6g} to {max(x):.6g}",
)
kvlab.fact(
    "scale",
    scale,
    f"the largest magnitude, {abs(x[largest]):.6g}, has the code {codes[largest]}",
    within=1e-5,
)
kvlab.fact(
    "codes",
    codes[:8],
    "element / scale is " + shown(quotients[:8], "%.2f"),
)
kvlab.fact("cut_off", *cut_off())
kvlab.fact(
    "worst",
    worst,
    "elements 0 to 7 are off by %s scales; the row has %d elements"
    % (shown(errors[:8], "%.2f"), len(x)),
)
kvlab.fact(
    "worst_error",
    errors[worst],
    "the next integer to element / scale is %d" % codes[worst],
    within=1e-3,
)
kvlab.done()
