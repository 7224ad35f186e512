#!/bin/sh
# configure_refuses_fast_math.sh SOURCE COMPILER: CMake must stop, and say why,
# when a flag that changes float arithmetic is given, however it is given.
set -eu

source=$1
compiler=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

# refuses FLAG WHERE COMMAND...: the command, a cmake call, must fail naming FLAG.
refuses() {
  flag=$1
  where=$2
  shift 2
  rm -rf "$work/build"
  if "$@" -S "$source" -B "$work/build" -G Ninja \
    -DCMAKE_CXX_COMPILER="$compiler" -DBUILD_TESTING=OFF >"$work/log" 2>&1; then
    echo "FAILED: configured with $flag in $where"
    failed=$((failed + 1))
  elif ! tr '\n' ' ' <"$work/log" | tr -s ' ' |
    grep -q -e "$flag is in the compiler flags: it lets the compiler reorder"; then
    echo "FAILED: $flag in $where was refused for another reason:"
    tail -n 20 "$work/log"
    failed=$((failed + 1))
  else
    passed=$((passed + 1))
  fi
}

unset CXXFLAGS LDFLAGS
for flag in -ffast-math -Ofast -ffinite-math-only; do
  refuses "$flag" CMAKE_CXX_FLAGS cmake "-DCMAKE_CXX_FLAGS=-g $flag"
  refuses "$flag" CXXFLAGS env "CXXFLAGS=$flag -g" cmake
done
refuses -Ofast CMAKE_CXX_FLAGS_RELEASE cmake -DCMAKE_CXX_FLAGS_RELEASE=-Ofast
refuses -ffast-math CMAKE_EXE_LINKER_FLAGS \
  cmake -DCMAKE_EXE_LINKER_FLAGS=-ffast-math

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
