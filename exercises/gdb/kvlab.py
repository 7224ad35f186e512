"""The API of facts.py: runs a student's program and looks at it on the way.

    import kvlab
    falls = []
    def look(frame):
        falls.append(kvlab.number(kvlab.var(frame, "M")))
    kvlab.on("rescale", look)
    kvlab.run()
    kvlab.fact("steps", len(falls), "the loop ran more than once")
    kvlab.done()

A handler is called where the program has stopped and must not make it go on.
"""
import json
import math
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import gdb

import kvlab_answers
from kvlab_values import (Mistake, array_at, cache, float32, is_q8, items,
                          local, number, numbers, places_of, plain, var)

__all__ = ["on", "on_function", "Watch", "run", "arguments", "var", "items",
           "number", "numbers", "program", "fact", "judge", "answer_of", "done",
           "Mistake", "array_at", "cache", "float32", "is_q8", "local", "plain"]

MODE = os.environ.get("KVLAB_GDB_MODE") or "native"
ARM_LIBRARIES = "/usr/aarch64-linux-gnu"
if MODE == "aarch64":
    gdb.execute("set sysroot " + ARM_LIBRARIES)
    gdb.execute("set solib-search-path "
                "/lib/aarch64-linux-gnu:/usr/lib/aarch64-linux-gnu")

# A name in the debug information may be relative to where the program was
# built, and that is a folder beside bin/.
if gdb.current_progspace().filename:
    gdb.execute("directory " + os.path.dirname(
        os.path.dirname(gdb.current_progspace().filename)), to_string=True)
# The shell that gdb starts programs with; not a student's own, which may know
# other redirections.
os.environ["SHELL"] = "/bin/sh"


# Temporary files, those of facts.py too, go where the checker removes them,
# also after it had to kill gdb.
if os.environ.get("KVLAB_FACTS"):
    tempfile.tempdir = os.path.dirname(
        os.path.abspath(os.environ["KVLAB_FACTS"]))


def arguments():
    """The program's arguments, as words. (gdb.parameter("args") of gdb 13 is
    empty whatever they are.)"""
    text = gdb.execute("show args", to_string=True)
    return shlex.split(text[text.index('"') + 1:text.rindex('"')])


# --- Starting ----------------------------------------------------------------

def _emulator():
    """The words before the program that let qemu run it; [] for none."""
    if MODE == "native":
        return []
    cpu = "x86_64" if MODE == "qemu" else "aarch64"
    for name in ("qemu-" + cpu, "qemu-" + cpu + "-static"):
        if shutil.which(name):
            more = (["-cpu", "max", "-L", ARM_LIBRARIES]
                    if MODE == "aarch64" else [])
            return [shutil.which(name)] + more
    raise Mistake("qemu-%s is not installed: apt-get install qemu-user-static"
                  % cpu)


# Seconds of computing after which a program is taken for one that does not
# end; what gdb itself takes does not count.
CPU_LIMIT = 40 if MODE == "native" else 150


def _die_with_gdb():
    """Runs in the new process: it must not outlive gdb."""
    if os.environ.get("KVLAB_FACTS"):
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT + 5))
    try:
        import ctypes
        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    except (ImportError, OSError, AttributeError):
        pass


_qemu = None


def _stop_qemu():
    global _qemu
    if _qemu is not None:
        _qemu.kill()
        _qemu.wait()
        _qemu = None


def start(words, output=None):
    """Starts the program of this gdb with arguments `words`, to where gdb can
    let it continue, under qemu. `output`: file for what it prints."""
    global _qemu
    if gdb.selected_inferior().pid != 0:
        gdb.execute("kill", to_string=True)
    _stop_qemu()
    path = gdb.current_progspace().filename
    if path is None:
        raise Mistake("gdb has no program; start it with: gdb --args PROGRAM")
    # A socket in a folder of our own: unlike a port, nobody else can have it.
    folder = tempfile.mkdtemp(prefix="kvlab.", dir=tempfile.tempdir or "/tmp")
    socket = os.path.join(folder, "gdb")
    if len(os.fsencode(socket)) > 100:  # a socket's name has at most 107 bytes
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="kvlab.", dir="/tmp")
        socket = os.path.join(folder, "gdb")
    try:
        _qemu = subprocess.Popen(
            _emulator() + ["-g", socket, path] + words,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, preexec_fn=_die_with_gdb)
        end = time.monotonic() + 20
        while True:
            try:
                if os.path.exists(socket):
                    gdb.execute("target remote " + socket, to_string=True)
                    return
            except gdb.error as error:
                if time.monotonic() > end:
                    raise Mistake("gdb cannot reach qemu: %s" % error)
            if _qemu.poll() is not None or time.monotonic() > end:
                raise Mistake("qemu did not start the program")
            time.sleep(0.02)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Run(gdb.Command):
    """Starts the program: run [ARGUMENTS]. Under qemu here."""

    def __init__(self):
        super().__init__("run", gdb.COMMAND_RUNNING)

    def invoke(self, text, _tty):
        if text:
            gdb.execute("set args " + text)
        start(arguments())
        gdb.execute("continue")


if MODE != "native":
    Run()


# --- Handlers ----------------------------------------------------------------

class _State:
    error = None      # what a handler raised
    finished = False  # a handler wants no more
    exit_code = None  # of the program


class _Stop(gdb.Breakpoint):
    def __init__(self, where, handler):
        super().__init__(where, internal=True)
        self.silent = True
        self.handler = handler

    def stop(self):
        try:
            if self.handler(gdb.newest_frame()):
                _State.finished = True
        except BaseException as error:
            _State.error = error
        return _State.finished or _State.error is not None


class Watch:
    """What on() returns: a handler may set `enabled` of any, to stop only
    where it has to. A stop costs a millisecond."""

    def __init__(self, places, handler):
        self.stops = [_Stop(place, handler) for place in places]

    @property
    def enabled(self):
        return self.stops[0].enabled

    @enabled.setter
    def enabled(self, yes):
        for stop in self.stops:
            if stop.enabled != bool(yes):
                stop.enabled = bool(yes)


def on(marker, handler, after=False):
    """handler(frame) at every stop at the first line of code after the marker
    `// [marker]` (after=True: after its second one). True ends the run."""
    return Watch(places_of(marker, after), handler)


def on_function(name, handler):
    """handler(frame) at every entry of a function. True ends the run."""
    try:
        gdb.decode_line(name)
    except gdb.error as error:
        raise Mistake("no function %s in this program (%s)" % (name, error))
    return Watch([name], handler)


def _exited(event):
    _State.exit_code = getattr(event, "exit_code", None)


gdb.events.exited.connect(_exited)


def _tail(path):
    with open(path, errors="replace") as text:
        lines = [line.strip() for line in text if line.strip()]
    return "; ".join(lines[-3:]) or "it printed nothing"


def run(*more):
    """Runs the program to its end, or until a handler returned True; `more`
    are further arguments; an option that was there is replaced. Mistake if it
    cannot run or does not exit with 0."""
    _State.error, _State.finished, _State.exit_code = None, False, None
    old = arguments()
    words = list(old)
    for option in [m for m in map(str, more) if m.startswith("--")]:
        while option in words:
            at = words.index(option)
            has_value = at + 1 < len(words) and words[at + 1][:2] != "--"
            del words[at:at + (2 if has_value else 1)]
    words += map(str, more)
    with tempfile.NamedTemporaryFile(prefix="kvlab.", suffix=".out") as out:
        try:
            if MODE == "native":
                gdb.execute("set exec-wrapper sh -c 'ulimit -S -t %d; "
                            "exec \"$@\"' sh" % CPU_LIMIT)
                try:
                    gdb.execute("run %s >%s 2>&1 </dev/null" % (
                        " ".join(map(shlex.quote, words)),
                        shlex.quote(out.name)),
                        to_string=True)
                finally:
                    gdb.execute("unset exec-wrapper")
                    gdb.execute("set args " +
                                " ".join(map(shlex.quote, old)))
            else:
                start(words, out)
                gdb.execute("continue", to_string=True)
        except gdb.error as error:
            raise Mistake("gdb could not run the program: %s; %s" % (
                error, _tail(out.name)))
        alive = gdb.selected_inferior().pid != 0
        if alive:
            stopped = (gdb.execute("info program", to_string=True)
                       if not _State.finished and _State.error is None else "")
            gdb.execute("kill", to_string=True)
        _stop_qemu()
        if _State.error is not None:
            raise _State.error
        if _State.finished:
            return
        if alive:
            signal = [w for w in stopped.replace(",", " ").split()
                      if w.startswith("SIG")]
            if signal == ["SIGXCPU"]:
                raise Mistake("the program did not end within %d s of "
                              "computing: does a loop not end?" % CPU_LIMIT)
            raise Mistake("the program was stopped by %s: %s" % (
                signal[0] if signal else "a signal", _tail(out.name)))
        if _State.exit_code != 0:
            raise Mistake("the program ended with exit code %s: %s" % (
                _State.exit_code, _tail(out.name)))


def program(*words, timeout=50):
    """Runs a program of the build (its name, then its arguments) and returns
    what it prints. Mistake if it does not exit with 0."""
    folder = os.environ.get("KVLAB_BIN") or os.path.dirname(
        gdb.current_progspace().filename or ".")
    path = os.path.join(folder, str(words[0]))
    if not os.path.exists(path):
        raise Mistake("the program %s is not built: there is no %s" % (
            words[0], path))
    try:
        done_ = subprocess.run(
            # Nothing traces it, so only another CPU's needs the emulator.
            (_emulator() if MODE == "aarch64" else []) +
            [path] + [str(w) for w in words[1:]],
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout, preexec_fn=_die_with_gdb)
    except subprocess.TimeoutExpired:
        raise Mistake("%s took more than %d s" % (words[0], timeout))
    if done_.returncode != 0:
        lines = done_.stderr.strip().splitlines()[-3:]
        raise Mistake("%s ended with exit code %d: %s" % (
            words[0], done_.returncode, "; ".join(lines)))
    return done_.stdout


# --- Facts -------------------------------------------------------------------

_facts = []


def _plain_fact(name, value):
    if isinstance(value, gdb.Value):
        value = number(value)
    if isinstance(value, (list, tuple)):
        return [_plain_fact(name, v) for v in value]
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise Mistake("fact %s: %r is no number, word or list of these" % (
            name, value))
    if isinstance(value, float) and not math.isfinite(value):
        raise Mistake("fact %s is %r" % (name, value))
    return value


def _add(name, fact_):
    if any(f["name"] == name for f in _facts):
        raise Mistake("fact %s is given twice" % name)
    _facts.append({"name": name, **fact_})


def fact(name, value, seen, within=0, words=(), any_order=False):
    """An answer: its name in answers.toml, an int, float, word or list of
    these. `seen`: what to show for a wrong answer, which must not be the
    value. `within`: the relative tolerance of floats. `words`: what may be
    written at all. `any_order`: a list is a set."""
    _add(name, {"value": _plain_fact(name, value), "within": within,
                "words": list(words), "any_order": any_order, "seen": seen})


def answer_of(name):
    """What the student wrote: the text of a number or a word, a list of these,
    or "" where there is no answer yet."""
    given = os.environ.get("KVLAB_ANSWERS")
    if given:  # as the checker has read them, to judge the same text
        with open(given, encoding="utf-8") as file:
            return json.load(file).get(name, "")
    folder = os.environ.get("KVLAB_EXERCISE")
    if not folder:
        raise Mistake("no exercise is open: KVLAB_EXERCISE is not set")
    text = kvlab_answers.read(os.path.join(folder, "answers.toml"))
    start, end = kvlab_answers.places(text).get(name, (0, 0))
    value = text[start:end]
    if value[:1] != "[":
        return value.strip("\"' \t")
    places = [p.strip("\"' \t\r\n") for p in value[1:-1].split(",")]
    return [p for p in places if p]


def judge(name, ok, seen):
    """For a question with several right answers: is the student's one?"""
    _add(name, {"ok": bool(ok), "seen": seen})


def _write(what):
    path = os.environ.get("KVLAB_FACTS")
    text = json.dumps(what)
    if not path:
        print(text)
        return
    with open(path + ".new", "w") as out:
        out.write(text)
    os.replace(path + ".new", path)


_done = False


def done():
    """All facts are given. Without it they do not count."""
    global _done
    _write({"facts": _facts, "done": True})
    _done = True


def _fail(text):
    _stop_qemu()
    if os.environ.get("KVLAB_FACTS"):
        _write({"error": text})
        text = "facts: " + text
    print(text, file=sys.stderr, flush=True)
    if gdb.selected_inferior().pid != 0:
        gdb.execute("kill", to_string=True)
    os._exit(1)


def _uncaught(kind, error, trace):
    if isinstance(error, (Mistake, gdb.GdbError)):
        _fail(str(error))
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = (" (%s:%d)" % (os.path.basename(trace.tb_frame.f_code.co_filename),
                           trace.tb_lineno) if trace is not None else "")
    _fail("%s: %s%s" % (kind.__name__, error, where))


def _leaving(_event):
    if os.environ.get("KVLAB_FACTS") and not _done:
        _fail("the facts ended without kvlab.done()")
    if _qemu is not None and gdb.selected_inferior().pid != 0:
        gdb.execute("kill", to_string=True)
    _stop_qemu()


# gdb exits with 0 after an error in a Python script; so the error is written
# where the checker looks, and the exit code is made here.
if os.environ.get("KVLAB_FACTS"):
    sys.excepthook = _uncaught
if hasattr(gdb.events, "gdb_exiting"):
    gdb.events.gdb_exiting.connect(_leaving)
if MODE not in ("native", "qemu", "aarch64"):
    _fail("KVLAB_GDB_MODE is %s; it can be native, qemu or aarch64" % MODE)
