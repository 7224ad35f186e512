#!/bin/sh
# compare_builds.sh BUILD BUILD...: the dump of every stage, made by each of
# these build folders, must be the same file byte for byte.
set -eu

if [ $# -lt 2 ]; then
  echo 'give at least two build folders' >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

dump() {  # BUILD STAGE FILE
  program=$1/bin/day09_$2
  # A build for another CPU runs in an emulator.
  if [ -x "$1/emulated/day09_$2" ]; then program=$1/emulated/day09_$2; fi
  if ! [ -x "$program" ]; then
    echo "$program is not there: build it first" >&2
    exit 2
  fi
  "$program" --context 256 --max-tokens 8 --dump "$3" >"$work/out"
}

first=$1
shift
stages='three_pass online_softmax q8_single_pass two_pass'
for stage in $stages; do
  dump "$first" "$stage" "$work/first.safetensors"
  for other in "$@"; do
    dump "$other" "$stage" "$work/other.safetensors"
    if ! cmp "$work/first.safetensors" "$work/other.safetensors"; then
      echo "the dumps of $stage by $first and $other differ" >&2
      exit 1
    fi
  done
done
echo "equal: the dumps of $(($# + 1)) builds, each stage"
