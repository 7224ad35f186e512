#!/bin/sh
# The gdb commands of the exercises, and the API of facts.py, on real programs.
# usage: gdb_tools_test.sh SOURCE BIN STUDENT
#   SOURCE   top of the repository
#   BIN      programs of preset lesson
#   STUDENT  gdb_tools_student, built by the same
set -u
source=$1
bin=$2
student=$3
command -v gdb >/dev/null || {
  echo "SKIPPED: gdb_tools_test: gdb is not installed"
  exit 77
}
gdb -nx -q -batch -ex 'python print(1)' 2>&1 | grep -qx 1 || {
  echo "SKIPPED: gdb_tools_test: this gdb has no Python"
  exit 77
}
gdb -nx -q -batch -ex 'break main' -ex run "$student" 2>&1 |
  grep -q 'Breakpoint 1, main' || {
  echo "SKIPPED: gdb_tools_test: gdb may not trace a program here"
  exit 77
}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
unset KVLAB_SOURCE KVLAB_BIN KVLAB_GDB_MODE
failed=0

# debugger SCRIPT PROGRAM ARGUMENTS
debugger() {
  script=$1
  shift
  # shellcheck disable=SC2086  # two words, or none
  timeout -k 2 120 gdb -nx -q ${printers:-} -batch \
    -x "$source/exercises/gdb/init.gdb" -x "$script" --args "$@" </dev/null
}

# commands PROGRAM ARGUMENTS: the checks of gdb_tools_test.py that name it.
commands() {
  name=$(basename "$1")
  rm -rf "$dir/result" "$dir/exercise"
  mkdir "$dir/exercise"
  KVLAB_RESULT=$dir/result KVLAB_EXERCISE=$dir/exercise \
    debugger "$source/tests/exercises/gdb_tools_test.py" "$@" \
    >"$dir/log" 2>&1
  if [ "$(cat "$dir/result" 2>/dev/null)" = 0 ]; then
    echo "$name: $(tail -n 1 "$dir/log")"
  else
    echo "FAILED: commands on $name"
    tail -n 60 "$dir/log"
    failed=1
  fi
}

# facts CODE PATTERN EXTRA [PROGRAM]: a facts.py of the lines on stdin, over
# online_softmax (or PROGRAM) with the arguments EXTRA, ends with CODE and writes
# JSON that matches PATTERN.
facts() {
  cat >"$dir/facts.py"
  rm -f "$dir/facts.json"
  # shellcheck disable=SC2086  # EXTRA is several words
  KVLAB_FACTS=$dir/facts.json debugger "$dir/facts.py" \
    "${4:-$bin/day09_online_softmax}" --context 128 --seed 3 --max-tokens 2 \
    --isa scalar --threads 1 $3 >"$dir/log" 2>&1
  code=$?
  if [ $code -eq "$1" ] && grep -q -- "$2" "$dir/facts.json" &&
    ! grep -q Traceback "$dir/log"; then
    return
  fi
  failed=1
  echo "FAILED: facts; exit code $code (wanted $1), wanted: $2"
  cat "$dir/facts.py"
  echo "-> $(cat "$dir/facts.json")"
  tail -n 20 "$dir/log"
}

args="--context 128 --seed 3 --max-tokens 2 --isa scalar --threads 1"
# shellcheck disable=SC2086  # several words
{
  commands "$bin/day09_online_softmax" $args --tile 1
  commands "$bin/day09_three_pass" $args
  # Without libstdc++'s own printers, as for a program of another CPU.
  echo 'set auto-load python-scripts off' >"$dir/plain.gdb"
  printers="-ix $dir/plain.gdb"
  commands "$bin/day09_q8_single_pass" $args
  printers=
  commands "$bin/day09_two_pass" $args
  commands "$bin/day10_sparse_topk" $args --sparse-k 2
}
commands "$student"

# 129 tokens, 3 layers, 2 KV heads of 2 query heads: 774 steps of the loop in
# all, 258 in the layer that is watched.
facts 0 '"loop", "value": 774, .*"one", "value": 258, .*"heads", "value": \[0, 1\], .*"same", "value": "yes", "within": 0.5, .*"done": true' '--tile 1' <<'EOF'
import kvlab
loop, one, heads, same = [], [], [], []
def enter(frame):
    layer = kvlab.number(kvlab.var(frame, "input")["layer"])
    watch.enabled = layer == 1
def step(frame):
    loop.append(kvlab.number(kvlab.var(frame, "t")))
def scored(frame):
    found = kvlab.items(kvlab.var(frame, "heads"))
    if not heads:
        heads.extend(kvlab.number(h["id"]["head"]) for h in found)
        pointer = kvlab.var(frame, "kv")["keys"]
        row = kvlab.array_at(pointer, 128)
        same.append("yes" if len(row) == 128 and
                    kvlab.number(row[5]) == kvlab.number((pointer + 5)
                                                         .dereference())
                    else "no")
kvlab.on_function("kvlab::OnlineSoftmaxStage::Attend", enter)
kvlab.on("score", step)
kvlab.on("score", scored, after=True)
watch = kvlab.on("score", lambda frame: one.append(1))
kvlab.run()
kvlab.fact("loop", len(loop), "")
kvlab.fact("one", len(one), "")
kvlab.fact("heads", heads, "")
kvlab.fact("same", same[0], "", within=0.5)
kvlab.done()
EOF

# A handler may end the run; another run may have other arguments; and any
# program of the build can be asked.
facts 0 '"value": 2, .*"value": 300, .*"value": "day09_two_pass"' '' <<'EOF'
import kvlab
import json
stops = []
watch = kvlab.on("score", lambda frame: stops.append(1) or len(stops) == 2)
kvlab.run()
first = len(stops)
def tokens(frame):
    n.append(kvlab.number(kvlab.var(frame, "n")))
    return True
n = []
watch.enabled = False
kvlab.on("normalise", tokens)
kvlab.run("--context", 149)
kvlab.run("--context", 150)
kvlab.fact("first", first, "")
kvlab.fact("sum", n[0] + n[1] - 1, "")
kvlab.fact("name", kvlab.program("day09_two_pass", "--version").split()[0], "")
kvlab.done()
EOF

facts 1 '"error": "no marker \[nosuch\] in this program; it has: ' '' <<'EOF'
import kvlab
kvlab.on("nosuch", print)
EOF
facts 1 '"error": "no function NoSuch in this program' '' <<'EOF'
import kvlab
kvlab.on_function("NoSuch", print)
EOF
facts 1 '"error": "no variable nosuch in kvlab::OnlineSoftmaxStage::Attend or its callers"' '' <<'EOF'
import kvlab
kvlab.on("score", lambda frame: kvlab.var(frame, "nosuch"))
kvlab.run()
EOF
facts 1 '"error": "ZeroDivisionError: division by zero (facts.py:2)"' '' <<'EOF'
import kvlab
kvlab.on("score", lambda frame: 1 / 0)
kvlab.run()
EOF
facts 1 '"error": "the program ended with exit code 1: day09_online_softmax: /nowhere: ' '--model /nowhere' <<'EOF'
import kvlab
kvlab.run()
EOF
facts 1 '"error": "day09_two_pass ended with exit code 2: day09_two_pass: .*--nosuch' '' <<'EOF'
import kvlab
kvlab.program("day09_two_pass", "--nosuch")
EOF
facts 1 '"error": "the program day09_nosuch is not built: there is no /' '' <<'EOF'
import kvlab
kvlab.program("day09_nosuch")
EOF
facts 1 '"error": "fact a is given twice"' '' <<'EOF'
import kvlab
kvlab.fact("a", 1, "")
kvlab.fact("a", 1, "")
EOF
facts 1 '"error": "fact a is nan"' '' <<'EOF'
import kvlab
kvlab.fact("a", float("nan"), "")
EOF
facts 1 '"error": "the facts ended without kvlab.done()"' '' <<'EOF'
import kvlab
kvlab.fact("a", 1, "")
EOF
facts 1 '"error": "the program did not end within 2 s of computing: ' '' "$student" <<'EOF'
import kvlab
kvlab.CPU_LIMIT = 2
kvlab.run()
EOF
# A question with several right answers.
mkdir -p "$dir/exercise"
cat >"$dir/exercise/answers.toml" <<'EOF'
k = 4  # places
use = "Off"
heads = [0, "1"]
open = ""
EOF
export KVLAB_EXERCISE="$dir/exercise"
facts 0 '"name": "k", "ok": true, "seen": "4 Off 0+1 "}' '' <<'EOF'
import kvlab
k, use, heads, none, gone = map(
    kvlab.answer_of, ("k", "use", "heads", "open", "gone"))
kvlab.judge("k", int(k) > 2, f"{k} {use} {'+'.join(heads)} {none}{gone}")
kvlab.done()
EOF
# What the checker has read counts, not a second reading of the file.
echo '{"k": "4", "use": "Off", "heads": ["0", "1"], "open": ""}' \
  >"$dir/answers.json"
echo 'k = [' >"$dir/exercise/answers.toml"
export KVLAB_ANSWERS="$dir/answers.json"
facts 0 '"name": "k", "ok": true, "seen": "4 Off 0+1 "}' '' <<'EOF'
import kvlab
k, use, heads, none, gone = map(
    kvlab.answer_of, ("k", "use", "heads", "open", "gone"))
kvlab.judge("k", int(k) > 2, f"{k} {use} {'+'.join(heads)} {none}{gone}")
kvlab.done()
EOF

# recency_evicts K IMPORTANCE PATTERN: what its facts.py says of JSON values.
recency_evicts() {
  echo "{\"evicts_k\": $1, \"evicts_importance\": $2}" >"$dir/answers.json"
  KVLAB_CONTEXT=128 KVLAB_SEED=3 KVLAB_BIN=$bin \
    facts 0 "\"evicts_k\", \"ok\": [a-z]*, \"seen\": \"$3" '' \
    <"$source/exercises/14_recency_evicts/facts.py"
}
recency_evicts '"+4"' '"Raw"' 'with --sparse-k 4 --importance raw '
recency_evicts '["4"]' '["raw"]' 'with --sparse-k 4 --importance raw '
recency_evicts '["4", "5"]' '"raw"' 'evicts_k is asked for: '
recency_evicts "\"$(printf '%05000d' 4)\"" '"raw"' 'evicts_k is asked for: '
unset KVLAB_ANSWERS
facts 1 '"error": "answers.toml, line 1: the list has no \] at its end' '' <<'EOF'
import kvlab
kvlab.answer_of("k")
EOF
unset KVLAB_EXERCISE

# When gdb is killed, what it had written is where the checker cleans up.
mkdir "$dir/tmp" "$dir/bin"
export TMPDIR="$dir/tmp"
facts 137 '' '' <<'EOF'
import os
import tempfile
import kvlab
kvlab._write({})
tempfile.mkdtemp()
kvlab.on("score", lambda frame: os.kill(os.getpid(), 9))
kvlab.run()
EOF
[ -z "$(ls "$dir/tmp")" ] || {
  failed=1
  echo "FAILED: left in TMPDIR: $(ls "$dir/tmp")"
}
unset TMPDIR
# So is the socket of qemu; this one tells where it is to be.
cat >"$dir/bin/qemu-x86_64" <<'EOF'
#!/bin/sh
echo "$2" >"${0%/bin/*}/socket"
EOF
chmod +x "$dir/bin/qemu-x86_64"
# qemu_socket FOLDER WANTED: where it is, with the facts in FOLDER.
qemu_socket() {
  echo 'import kvlab; kvlab.run()' >"$dir/facts.py"
  PATH="$dir/bin:$PATH" KVLAB_GDB_MODE=qemu KVLAB_FACTS=$1/facts.json \
    debugger "$dir/facts.py" "$student" >"$dir/log" 2>&1
  if grep -q '"error": "qemu did not start the program"' "$1/facts.json" &&
    grep -q "^$2/kvlab\.[^/]*/gdb\$" "$dir/socket"; then
    return
  fi
  failed=1
  echo "FAILED: qemu's socket is $(cat "$dir/socket"), wanted: $2/..."
  tail -n 5 "$dir/log"
}
long=$dir/$(printf '%0100d' 1) # too long for a socket's name
mkdir "$long"
qemu_socket "$dir" "$dir"
qemu_socket "$long" /tmp

# A mode that there is not.
export KVLAB_GDB_MODE=nonsense
mode='KVLAB_GDB_MODE is nonsense; it can be native, qemu or aarch64'
facts 1 "\"error\": \"$mode\"" '' <<'EOF'
import kvlab
kvlab.done()
EOF
[ "$(debugger /dev/null "$student" 2>&1)" = "$mode" ] || {
  failed=1
  echo "FAILED: not one line about KVLAB_GDB_MODE"
}
unset KVLAB_GDB_MODE
# A crash of the program is told as such.
facts 1 '"error": "the program was stopped by SIGABRT' '' <<'EOF'
import gdb
import kvlab
kvlab.on("score", lambda frame: gdb.execute("set var kv.format = 77"))
kvlab.on("normalise", lambda frame: gdb.execute("set var $pc = abort"))
kvlab.run()
EOF

[ $failed -eq 0 ] && echo "all as it should be"
exit $failed
