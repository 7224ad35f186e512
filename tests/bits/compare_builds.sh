#!/bin/sh
# compare_builds.sh BUILD BUILD...: the dump of every stage and the measurements
# of day09_accuracy, made by each of these build folders, must be the same file
# byte for byte; and a build for another CPU must make dumps whose SHA-256 is in
# tests/golden.
set -eu

if [ $# -lt 2 ]; then
  echo 'give at least two build folders' >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

dump() {  # BUILD PROGRAM FILE
  run "$1" "$2" --context 256 --max-tokens 8 --dump "$3"
}

run() {  # BUILD PROGRAM ARGUMENT...
  build=$1
  name=$2
  shift 2
  program=$build/bin/$name
  # A build for another CPU runs in an emulator.
  if [ -x "$build/emulated/$name" ]; then
    program=$build/emulated/$name
  fi
  if ! [ -x "$program" ]; then
    echo "$program is not there: build it first" >&2
    exit 2
  fi
  "$program" "$@" >"$work/out"
}

first=$1
shift
stages='day09_three_pass day09_online_softmax day09_q8_single_pass day09_two_pass
  day10_sparse_topk'
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

# A build for another CPU makes the course's own files too, of 2,061 tokens: one
# with f32 keys and values and one with q8, since each takes two minutes there.
golden=$(dirname "$0")/../golden
for build in "$@"; do
  [ -d "$build/emulated" ] || continue
  for stage in day09_three_pass day09_q8_single_pass; do
    run "$build" "$stage" --dump "$work/default.safetensors"
    if ! "$first/bin/lab_compare" --golden "$golden/$stage.sha256" \
      "$work/default.safetensors"; then
      echo "the default dump of $stage by $build is not the course's" >&2
      exit 1
    fi
  done
done

accuracy() {  # BUILD FILE
  run "$1" day09_accuracy --context 256 --tokens 256 --draws 2 --csv "$2"
}
accuracy "$first" "$work/first.csv"
for other in "$@"; do
  accuracy "$other" "$work/other.csv"
  if ! cmp "$work/first.csv" "$work/other.csv"; then
    echo "the measurements of day09_accuracy by $first and $other differ" >&2
    exit 1
  fi
done
echo "equal: the dumps of $(($# + 1)) builds, each stage"
