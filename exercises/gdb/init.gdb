# Sets gdb up for the exercises: quiet, readable, with the commands of
# README.md. It starts nothing. Works in gdb and gdb-multiarch, with -nx.
set pagination off
set confirm off
set debuginfod enabled off
set breakpoint pending off
set print pretty off
set print elements 16
set print repeats 4
set print frame-arguments scalars
set print thread-events off
set print inferior-events off
set print address on
set auto-load safe-path /usr
set history save off
set startup-with-shell on
set remotetimeout 20

# kvlab.py is beside this file, wherever that is. A script of gdb is not told
# its own path; but it is open while it is read.
python
import os, sys
def _folder():
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
        if (os.path.basename(path) == "init.gdb" and
                os.path.exists(os.path.dirname(path) + "/kvlab.py")):
            return os.path.dirname(path)
    return os.path.join(os.environ.get("KVLAB_SOURCE", "."), "exercises/gdb")
sys.dont_write_bytecode = True
sys.path.insert(0, _folder())
import kvlab, kvlab_commands, kvlab_printers
end
