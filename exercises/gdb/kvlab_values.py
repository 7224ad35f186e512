"""Reads the state of a program that has stopped: values, frames, markers.

Containers are read by their fields, so that it works without libstdc++'s
printers and without calling a function of the program.
"""
import math
import os
import re
import struct

import gdb


class Mistake(gdb.GdbError):
    """What a student should read: one line, no traceback."""


# --- Values ------------------------------------------------------------------

def plain(value):
    """The value without references around it."""
    type_ = value.type.strip_typedefs()
    if type_.code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
        return value.referenced_value()
    return value


def type_name(value):
    """Name of the value's class, without const and arguments of templates."""
    type_ = plain(value).type.strip_typedefs().unqualified()
    return (type_.tag or str(type_)).split("<")[0]


def number(value):
    """The int or float in a gdb.Value, exact."""
    value = plain(value)
    if value.is_optimized_out:
        raise Mistake("the compiler kept no place for this value here")
    code = value.type.strip_typedefs().code
    if code == gdb.TYPE_CODE_FLT:
        return float(value)
    if code in (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_BOOL, gdb.TYPE_CODE_CHAR,
                gdb.TYPE_CODE_ENUM, gdb.TYPE_CODE_PTR):
        return int(value)
    raise Mistake("%s is not a number" % value.type)


def is_float32(value):
    type_ = plain(value).type.strip_typedefs()
    return type_.code == gdb.TYPE_CODE_FLT and type_.sizeof == 4


def float32(x):
    """x rounded to a float."""
    try:
        return struct.unpack("f", struct.pack("f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def array_at(pointer, count):
    """`count` values from a pointer on, read from the program at once."""
    if count == 0:
        return []
    target = pointer.type.strip_typedefs().target()
    array = pointer.cast(target.array(count - 1).pointer()).dereference()
    array.fetch_lazy()
    return [array[i] for i in range(count)]


def extent(value):
    """(pointer to the first, how many) of a vector, array or span; or None."""
    value = plain(value)
    type_ = value.type.strip_typedefs()
    if type_.code == gdb.TYPE_CODE_ARRAY:
        low, high = type_.range()
        return value[low].address, high - low + 1
    name = type_name(value)
    if name == "std::vector":
        start = value["_M_impl"]["_M_start"]
        if start.type.strip_typedefs().code != gdb.TYPE_CODE_PTR:
            return None  # vector<bool>
        return start, int(value["_M_impl"]["_M_finish"] - start)
    if name == "std::array":
        return extent(value["_M_elems"])
    if name == "std::span":
        storage = value["_M_extent"]
        fields = [f.name for f in storage.type.strip_typedefs().fields()]
        count = (storage["_M_extent_value"] if "_M_extent_value" in fields
                 else type_.template_argument(1))
        return value["_M_ptr"], int(count)
    return None


def items(value):
    """The elements of a vector, array or span, as a list of gdb.Value."""
    found = extent(value)
    if found is None:
        raise Mistake("%s has no elements" % value.type)
    pointer, count = found
    if not 0 <= count <= 1 << 24:
        raise Mistake("this container is not initialised yet")
    return array_at(pointer, count)


def numbers(value):
    return [number(v) for v in items(value)]


def field(value, name):
    """A member of the value, or None."""
    try:
        return plain(value)[name]
    except (gdb.error, KeyError, ValueError):
        return None


# --- Frames ------------------------------------------------------------------

def here():
    """The selected frame."""
    try:
        return gdb.selected_frame()
    except gdb.error:
        raise Mistake("the program is not running; set a breakpoint "
                      "(stop-at NAME), then: run")


def with_callers(frame):
    while frame is not None:
        yield frame
        frame = frame.older()


def symbols(frame):
    """The variables of a frame that its line can see, innermost first."""
    try:
        block = frame.block()
    except RuntimeError:
        return
    while block is not None and not block.is_global and not block.is_static:
        for symbol in block:
            if symbol.is_variable or symbol.is_argument:
                yield symbol
        if block.function is not None:
            return
        block = block.superblock


def local(frame, name, initialised=False):
    """A variable of this frame, or None. `initialised`: not one whose line has
    still to come: its memory holds what was there before."""
    line = frame.find_sal().line
    for symbol in symbols(frame):
        if symbol.name != name:
            continue
        if initialised and not symbol.is_argument and symbol.line >= line:
            continue
        try:
            value = symbol.value(frame)
            if not value.is_optimized_out:
                return value
        except gdb.error:
            pass
    return None


def var(frame, name):
    """A local of this frame or of the next of its callers that has one."""
    for f in with_callers(frame):
        value = local(f, name)
        if value is not None:
            return value
    raise Mistake("no variable %s in %s or its callers" % (name, frame.name()))


def cache(frame):
    """The KvHeadView that this frame, or a caller, works on."""
    for f in with_callers(frame):
        for name in ("input", "group"):
            holder = local(f, name, initialised=True)
            view = field(holder, "kv") if holder is not None else None
            if view is not None:
                break
        else:
            view = local(f, "kv", initialised=True)
        if view is None:
            continue
        view = plain(view)
        if view.type.strip_typedefs().code == gdb.TYPE_CODE_PTR:
            view = view.dereference()
        if type_name(view) == "kvlab::KvHeadView":
            n, d = int(view["tokens"]), int(view["head_dim"])
            if 1 <= n <= 1 << 24 and 1 <= d <= int(view["stride"]) <= 1 << 16:
                return view
    raise Mistake("there is no cache in this frame; stop in a stage first" +
                  hint("score", "scores", "maximum"))


def is_q8(view):
    return str(plain(view["format"])).endswith("kQ8")


# --- Markers -----------------------------------------------------------------

MARKER = re.compile(r"^\s*// \[([a-z_0-9]+)\]\s*$")


def source_tree():
    """The top of the course's tree."""
    return os.path.abspath(
        os.environ.get("KVLAB_SOURCE") or
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


_markers = None


def all_markers():
    """{name: [(file, line of the opening, line of the closing), ...]}"""
    global _markers
    if _markers is not None:
        return _markers
    _markers = {}
    top = source_tree()
    skipped = {"build", ".git", "tests", "solutions", "docs"}
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(f for f in folders if f not in skipped)
        for name in sorted(files):
            if not name.endswith((".cpp", ".h")):
                continue
            path = os.path.join(folder, name)
            opened = {}
            with open(path, encoding="utf-8", errors="replace") as text:
                for i, line in enumerate(text, 1):
                    found = MARKER.match(line)
                    if not found:
                        continue
                    marker = found.group(1)
                    if marker not in opened:
                        opened[marker] = i
                        continue
                    _markers.setdefault(marker, []).append(
                        (os.path.relpath(path, top), opened.pop(marker), i))
    return _markers


def code_line(file, line):
    """The first line from `line` on, in this file, that has code in the
    program; None if the program was not made from the file."""
    try:
        found = gdb.decode_line('"%s":%d' % (file, line))[1]
    except gdb.error:
        return None
    return found[0].line if found else None


def markers_here():
    """all_markers(), those alone that the program has code for."""
    result = {}
    for name, places in all_markers().items():
        for file, first, last in places:
            line = code_line(file, first)
            if line is not None and line < last:
                result.setdefault(name, []).append((file, first, last))
    return result


def find_marker(text):
    """The places of NAME or FILE:NAME in this program, all in one file."""
    if gdb.current_progspace().filename is None:
        raise Mistake("gdb has no program; start it with: gdb --args PROGRAM")
    file, _, name = text.rpartition(":")
    name = name.strip("[]")
    places = [p for p in all_markers().get(name, [])
              if not file or ("/" + p[0]).endswith("/" + file)]
    places = [(f, first, last) for f, first, last in places
              if (code_line(f, first) or last) < last]
    if not places:
        known = sorted(markers_here())
        if not known:
            raise Mistake("this program has no markers gdb knows lines of; "
                          "build it with: cmake --preset lesson")
        raise Mistake("no marker [%s]%s in this program; it has: %s" % (
            name, " in " + file if file else "", ", ".join(known)))
    files = sorted({p[0] for p in places})
    if len(files) > 1:
        raise Mistake("[%s] is in several files of this program; say which: %s"
                      % (name, ", ".join("stop-at %s:%s" % (f, name)
                                         for f in files)))
    return places


def places_of(text, after=False):
    """["file:line", ...] where to stop for a marker."""
    result = []
    for file, first, last in find_marker(text):
        line = code_line(file, last if after else first)
        if line is None:
            raise Mistake("no code after [%s]" % text)
        result.append('"%s":%d' % (file, line))
    return result


def hint(*names):
    """": stop-at NAME" with the first of the markers that the program has."""
    for name in names:
        for file, first, last in all_markers().get(name, []):
            line = code_line(file, first)
            if line is not None and line < last:
                return ": stop-at " + name
    return ""
