"""Pretty-printers, and [] and size() of containers in gdb's expressions.

Both work where libstdc++'s own are missing, as on a program of another CPU.
"""
import gdb
import gdb.printing
import gdb.xmethod

from kvlab_values import (extent, field, is_q8, items, number, plain,
                          type_name)


def short(x):
    """A number as gdb prints it."""
    return "%.9g" % x if isinstance(x, float) else str(x)


def some(values, count=4):
    """"{1, 2, 3, 4, ...}"."""
    text = ", ".join(short(number(v)) for v in values[:count])
    return "{%s%s}" % (text, ", ..." if len(values) > count else "")


class Sequence:
    """std::vector, std::array, std::span."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        found = extent(self.value)
        if found is None or not 0 <= found[1] <= 1 << 24:
            return "(not initialised)"
        return "[%d]" % found[1]

    def children(self):
        found = extent(self.value)
        if found is None or not 0 < found[1] <= 1 << 24:
            return
        pointer, count = found
        for i in range(count):
            yield "[%d]" % i, (pointer + i).dereference()

    def display_hint(self):
        return "array"


def view_text(v):
    return "%s, %d tokens, %d elements a row, stride %d" % (
        "q8" if is_q8(v) else "f32", v["tokens"], v["head_dim"], v["stride"])


def softmax_text(v):
    if v["empty"]:
        return "no token yet, acc [%d]" % extent(v["acc"])[1]
    return "M = %s, S = %s, acc [%d] %s" % (
        short(number(v["M"])), short(number(v["S"])), extent(v["acc"])[1],
        some(items(v["acc"])))


def query_text(v):
    scales = items(v["scales_"])
    return "codes [%d] %s, scales [%d] %s" % (
        extent(v["codes_"])[1], some(items(v["codes_"]), 8), len(scales),
        some(scales))


def head_text(v):
    return "layer %d, head %d, position %d" % (
        v["layer"], v["head"], v["position"])


def cache_text(v):
    shape = v["shape_"]
    tokens = items(v["tokens_"])
    return "%s, %d layers, %d KV heads, %d elements a row, %d of %d tokens" % (
        "q8" if is_q8(shape) else "f32", shape["layers"], shape["kv_heads"],
        shape["head_dim"], tokens[-1] if tokens else 0, shape["capacity"])


REASONS = {"kImportance": "importance", "kProbe": "probe",
           "kRecency": "recency", "kLowerProbe": "lower_probe",
           "kEvictedByRecency": "evicted_by_recency"}


def reason(value):
    return REASONS.get(str(value).split("::")[-1], "?")


def selection_text(v):
    reasons = items(v["reasons"])
    return "%d of %d blocks: %s" % (
        extent(v["blocks"])[1], len(reasons),
        ", ".join("%d %s" % (b, reason(reasons[int(b)]))
                  for b in items(v["blocks"])))


def input_text(v):
    return "layer %d, heads %d to %d, position %d, kv = {%s}" % (
        v["layer"], v["first_head"], v["first_head"] + v["group"] - 1,
        v["position"], view_text(v["kv"]))


class Text:
    def __init__(self, value, text):
        self.value = value
        self.text = text

    def to_string(self):
        try:
            return "{%s}" % self.text(self.value)
        except (gdb.error, gdb.GdbError, IndexError):
            return "{not initialised}"


TEXTS = {"kvlab::KvHeadView": view_text,
         "kvlab::OnlineSoftmax": softmax_text,
         "kvlab::QuantisedQuery": query_text,
         "kvlab::HeadId": head_text,
         "kvlab::KvCache": cache_text,
         "kvlab::Selection": selection_text,
         "kvlab::AttendInput": input_text}


class Printers(gdb.printing.PrettyPrinter):
    def __init__(self):
        super().__init__("kvlab")

    def __call__(self, value):
        code = value.type.strip_typedefs().code
        if code != gdb.TYPE_CODE_STRUCT:
            return None
        name = type_name(value)
        if name in TEXTS:
            return Text(value, TEXTS[name])
        if (name in ("std::vector", "std::array", "std::span") and
                extent(value) is not None):
            return Sequence(value)
        return None


gdb.printing.register_pretty_printer(None, Printers(), replace=True)


# --- heads[0].softmax.M in an expression -------------------------------------

class Element(gdb.xmethod.XMethodWorker):
    def __init__(self, index_type):
        super().__init__()
        self.index_type = index_type

    def get_arg_types(self):
        return gdb.lookup_type(self.index_type)

    def get_result_type(self, obj, index):
        return extent(obj)[0].dereference().type

    def __call__(self, obj, index):
        pointer, count = extent(obj)
        if not 0 <= int(index) < count:
            raise gdb.GdbError("[%d] is beyond the end: there are %d elements"
                               % (int(index), count))
        return (pointer + int(index)).dereference()


class Size(gdb.xmethod.XMethodWorker):
    def get_arg_types(self):
        return None

    def get_result_type(self, obj):
        return gdb.lookup_type("long")

    def __call__(self, obj):
        return gdb.Value(extent(obj)[1]).cast(gdb.lookup_type("long"))


class Methods(gdb.xmethod.XMethodMatcher):
    def __init__(self):
        super().__init__("kvlab")
        self.methods = []

    def match(self, class_type, name):
        tag = class_type.strip_typedefs().unqualified().tag or ""
        if tag.split("<")[0] not in ("std::vector", "std::array", "std::span"):
            return None
        # For std::size_t the program's own [] would be the better match, and
        # that may be inlined everywhere.
        return {"operator[]": [Element("long"), Element("unsigned long")],
                "size": Size()}.get(name)


gdb.xmethod.register_xmethod_matcher(None, Methods(), replace=True)
