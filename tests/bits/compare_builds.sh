#!/bin/sh
# compare_builds.sh BUILD BUILD...: the needle lab's dump, made by each of these
# build folders, must be the same file byte for byte.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

first=
count=0
for folder in "$@"; do
  program=$folder/bin/day09_three_pass
  dump=$work/dump.safetensors
  if ! [ -x "$program" ]; then
    echo "$program is not there: build it first" >&2
    exit 2
  fi
  "$program" --context 512 --max-tokens 8 --dump "$dump" >"$work/out"
  if [ -z "$first" ]; then
    first=$folder
    mv "$dump" "$work/first.safetensors"
  elif ! cmp "$work/first.safetensors" "$dump"; then
    echo "the dumps of $first and $folder differ" >&2
    exit 1
  fi
  count=$((count + 1))
done
if [ "$count" -lt 2 ]; then
  echo 'give at least two build folders' >&2
  exit 2
fi
echo "equal: the dumps of $count builds, $(wc -c <"$work/first.safetensors") bytes each"
