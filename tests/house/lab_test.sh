#!/bin/sh
# lab_test.sh SOURCE: tests the `lab` script on machines made of stubs: a PATH
# that holds the ordinary small tools and, once "installed", stubs of the
# compiler, CMake, Ninja and so on. Nothing is really installed, built or
# fetched. Every stub writes its call to $CALLS.
set -eu

source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
machine=0

# --- The stubs ----------------------------------------------------------------

stubs=$work/stubs
mkdir "$stubs"

stub() {
  cat >"$stubs/$1"
  chmod +x "$stubs/$1"
}

stub id <<'END'
#!/bin/sh
echo "${FAKE_UID:-0}"
END

stub true <<'END'
#!/bin/sh
END

stub nproc <<'END'
#!/bin/sh
echo 3
END

# May be used unless the machine says that this user may not.
stub sudo <<'END'
#!/bin/sh
echo "sudo $*" >>"$CALLS"
[ ! -e "$STATE/no_sudoer" ] || exit 1
FAKE_UID=0 exec "$@"
END

stub c++ <<'END'
#!/bin/sh
echo "c++ $*" >>"$CALLS"
case $* in
  *--version*) echo 'c++ (stub) 12.2.0'; exit ;;
esac
! grep -q __has_include && [ ! -e "$STATE/old_compiler" ]
END

stub pkg-config <<'END'
#!/bin/sh
echo "pkg-config $*" >>"$CALLS"
[ -e "$STATE/lib-$2" ]
END

stub ninja <<'END'
#!/bin/sh
exit 1
END

stub cmake <<'END'
#!/bin/sh
echo "cmake CXX=${CXX:-} $*" >>"$CALLS"
cat >/dev/null
case " $* " in
  *" --version "*)
    echo "cmake version $(cat "$STATE/cmake_version" 2>/dev/null || echo 3.25.1)"
    ;;
  *" --preset "*)
    [ ! -e "$STATE/configure_fails" ] || { echo 'CMake Error: broken'; exit 1; }
    mkdir -p "build/$2"
    : >"build/$2/build.ninja"
    echo "CMAKE_HOME_DIRECTORY:INTERNAL=$(pwd -P)" >"build/$2/CMakeCache.txt"
    ;;
  *" --build "*)
    if [ -e "$STATE/build_fails" ]; then
      echo '[1/2] Building CXX object a.o'
      i=0
      while [ $i -lt 60 ]; do i=$((i + 1)); echo "compiler output $i"; done
      echo 'a.cpp:1: error: the last line'
      exit 1
    fi
    if [ -e "$2/bin/day09_three_pass" ]; then
      echo 'ninja: no work to do.'
      exit
    fi
    echo '[1/2] Building CXX object a.o'
    echo '[2/2] Linking'
    mkdir -p "$2/bin"
    for stage in day09_three_pass day09_online_softmax day09_q8_single_pass \
      day09_two_pass day10_sparse_topk day10_needle lab_exercises; do
      cat >"$2/bin/$stage" <<'PROGRAM'
#!/bin/sh
echo "model               program in $(pwd)"
for argument in "$@"; do echo "<$argument>"; done
cat
echo "${0##*/} warns" >&2
exit "${PROGRAM_EXIT:-0}"
PROGRAM
      chmod +x "$2/bin/$stage"
    done
    ;;
esac
END

stub ctest <<'END'
#!/bin/sh
echo "ctest $*" >>"$CALLS"
mkdir -p "$2/Testing/Temporary"
cp "$STATE/ctest_log" "$2/Testing/Temporary/LastTest.log"
if [ -e "$STATE/ctest_log_${2##*/}" ]; then
  cat "$STATE/ctest_log_${2##*/}" >>"$2/Testing/Temporary/LastTest.log"
fi
if [ -e "$STATE/tests_fail" ]; then
  echo '50% tests passed, 1 tests failed out of 2'
  exit 8
fi
echo '100% tests passed, 0 tests failed out of 2'
END

# The package managers know these packages. apt-get knows them after an update.
stub install_stub <<'END'
#!/bin/sh
for package in "$@"; do
  case $package in
    -*) ;;
    g++ | gcc-c++) cp "$STUBS/c++" "$BIN/c++" ;;
    cmake) cp "$STUBS/cmake" "$STUBS/ctest" "$BIN" ;;
    ninja-build | ninja) cp "$STUBS/ninja" "$BIN" ;;
    pkg-config | pkgconf | pkgconf-pkg-config) cp "$STUBS/pkg-config" "$BIN" ;;
    libcli11-dev | cli11-devel | cli11) : >"$STATE/lib-CLI11" ;;
    nlohmann-json3-dev | json-devel | nlohmann-json)
      : >"$STATE/lib-nlohmann_json" ;;
    libpcre2-dev | pcre2-devel | pcre2) : >"$STATE/lib-libpcre2-8" ;;
    libutf8proc-dev | utf8proc-devel | utf8proc) : >"$STATE/lib-libutf8proc" ;;
    libgtest-dev | gtest-devel | googletest) : >"$STATE/lib-gtest" ;;
    libtomlplusplus-dev | tomlplusplus-devel | tomlplusplus)
      : >"$STATE/lib-tomlplusplus" ;;
    gdb) cp "$STUBS/true" "$BIN/gdb" ;;
    *) echo "unknown package $package"; exit 100 ;;
  esac
done
END

stub apt-get <<'END'
#!/bin/sh
echo "apt-get DEBIAN_FRONTEND=${DEBIAN_FRONTEND:-} $*" >>"$CALLS"
case " $* " in
  *" --simulate "*) [ -e "$STATE/lists" ]; exit ;;
esac
[ "$(id -u)" = 0 ] || { echo 'apt-get: are you root?'; exit 100; }
case " $* " in
  *" update "*) : >"$STATE/lists"; exit ;;
esac
if [ -e "$STATE/stale" ]; then
  rm "$STATE/stale"
  echo '404 Not Found'
  exit 100
fi
[ ! -e "$STATE/apt_fails" ] || { echo 'E: no space left'; exit 100; }
while [ "$1" != install ]; do shift; done
shift
exec "$STUBS/install_stub" "$@"
END

for name in dnf brew; do
  stub $name <<'END'
#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
shift
exec "$STUBS/install_stub" "$@"
END
done

# --- Making machines and looking at them --------------------------------------

# new_machine COMMAND...: a machine with nothing but small tools and these stubs.
# Its kvlab lies in a folder with a space in its name.
new_machine() {
  machine=$((machine + 1))
  home=$work/machine$machine
  lab_folder="$home/my kvlab"
  BIN=$home/bin
  STATE=$home/state
  CALLS=$home/calls
  mkdir -p "$BIN" "$STATE" "$lab_folder/tests" "$home/elsewhere"
  : >"$CALLS"
  echo 'the input' >"$home/in"
  cp "$source/lab" "$source/CMakePresets.json" "$lab_folder"
  printf '%s\n' '# comment' 'Allowed.*  paper  # a reason' \
    >"$lab_folder/tests/skips.txt"
  for tool in sh cat sed awk grep cut tr tail head cksum mkdir rm cp mv chmod \
    dirname readlink date sort env wc; do
    path=$(command -v "$tool") || continue
    case $path in
      /*) ln -s "$path" "$BIN/$tool" ;;
    esac
  done
  cp "$stubs/id" "$stubs/nproc" "$stubs/true" "$BIN"
  for tool in "$@"; do cp "$stubs/$tool" "$BIN"; done
  printf '%s\n' '1/1 Testing: a_test' '[ RUN      ] A.One' \
    '[       OK ] A.One (0 ms)' 'Test Passed.' >"$STATE/ctest_log"
}

# A machine that has everything.
full_machine() {
  new_machine c++ cmake ctest ninja pkg-config apt-get
  for library in CLI11 nlohmann_json libpcre2-8 libutf8proc gtest; do
    : >"$STATE/lib-$library"
  done
}

# with VARIABLE=VALUE... -- LAB_ARGUMENT...: runs lab, from another folder.
with() {
  : >"$home/settings"
  while [ "$1" != -- ]; do
    printf '%s\n' "$1" >>"$home/settings"
    shift
  done
  shift
  code=0
  (
    cd "$home/elsewhere"
    unset CXX DEBIAN_FRONTEND KVLAB_JOBS KVLAB_WERROR KVLAB_REQUIRE \
      KVLAB_TOKENIZERS KVLAB_VECTORS
    while IFS= read -r setting; do
      export "${setting?}"
    done <"$home/settings"
    export PATH="$BIN" BIN STATE CALLS STUBS="$stubs"
    exec "$lab_folder/lab" "$@"
  ) >"$home/out" 2>"$home/err" <"$home/in" || code=$?
}

lab() { with -- "$@"; }

check() {
  what=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $test_name: $what (exit code $code)"
    sed 's/^/  out: /' "$home/out"
    sed 's/^/  err: /' "$home/err"
    sed 's/^/  call: /' "$CALLS"
  fi
}

code_is() { check "exit code $1" [ "$code" -eq "$1" ]; }
prints() { check "stdout has: $1" grep -qF -e "$1" "$home/out"; }
says() { check "stderr has: $1" grep -qF -e "$1" "$home/err"; }
says_not() { check "stderr has not: $1" lacks "$1" "$home/err"; }
prints_not() { check "stdout has not: $1" lacks "$1" "$home/out"; }
called() { check "called: $1" grep -qF -e "$1" "$CALLS"; }
not_called() { check "not called: $1" lacks "$1" "$CALLS"; }
lacks() { ! grep -qF -e "$1" "$2"; }
empty() { ! [ -s "$1" ]; }
count_is() { check "$1 times: $2" [ "$(grep -cF -e "$2" "$CALLS")" -eq "$1" ]; }

all_apt='g++ cmake ninja-build pkg-config libcli11-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev'

# --- Tests --------------------------------------------------------------------

test_name='a bare machine, as root'
new_machine apt-get
lab run three_pass --depth 0.2 'two words'
code_is 0
says "to be installed with apt-get: $all_apt"
says_not gtest
for name in compiler cmake ninja pkg-config cli11 json pcre2 utf8proc; do
  says "  $name "
done
count_is 1 "DPkg::Lock::Timeout=120 update"
called "apt-get DEBIAN_FRONTEND=noninteractive -o DPkg::Lock::Timeout=120 install -y --no-install-recommends $all_apt"
not_called sudo
called '--preset release -DKVLAB_WERROR=OFF --fresh -DBUILD_TESTING=OFF'
called '--target programs -j'
says 'building release'
prints 'program in '"$home/elsewhere"
prints '<--depth>'
prints '<0.2>'
prints '<two words>'
prints 'the input'

test_name='a second run does nothing but ask ninja'
: >"$CALLS"
lab run
code_is 0
says_not 'lab:'
check 'one call' [ "$(wc -l <"$CALLS")" -eq 1 ]
called '--build'
prints 'program in'

test_name='a program is run where the user is, with its exit code'
with PROGRAM_EXIT=7 -- run two_pass --rescan
code_is 7
prints '<--rescan>'
prints_not '<two_pass>'
says 'day09_two_pass warns'
lab run sparse_topk --sparse-k 4
prints '<--sparse-k>'
says 'day10_sparse_topk warns'

test_name='run alone asks every stage, by one program'
lab run --depth 0.2 'two words'
code_is 0
prints "program in $home/elsewhere"
prints '<--depth>'
prints '<two words>'
prints 'the input'
says 'day10_needle warns'
says_not 'day09_three_pass warns'
with PROGRAM_EXIT=3 -- run
code_is 3

test_name='run: the prompt and dumps are for one stage'
for option in --show-prompt --dump=x; do
  lab run $option
  code_is 0
  says 'day09_three_pass warns'
  says_not 'day10_needle warns'
done

test_name='test after run installs gtest only and keeps the build'
: >"$CALLS"
lab test
code_is 0
says 'to be installed with apt-get: libgtest-dev'
says_not '  cmake '
not_called ' update'
called '-DBUILD_TESTING=ON'
not_called '--fresh'
called '--target all'
called "ctest --test-dir $lab_folder/build/release"
called '-LE full'
prints '100% tests passed'
prints '1 passed, 0 failed, 0 skipped'

test_name='run after test leaves the tests configured'
: >"$CALLS"
lab run
code_is 0
not_called '--preset'
not_called apt-get

test_name='changed presets are configured again'
echo >>"$lab_folder/CMakePresets.json"
: >"$CALLS"
lab test
code_is 0
count_is 1 '--preset release'

test_name='a moved folder starts anew'
mv "$lab_folder" "$home/moved"
lab_folder=$home/moved
: >"$CALLS"
lab run
code_is 0
called '--fresh'

test_name='known packages need no update'
new_machine apt-get
: >"$STATE/lists"
lab run
code_is 0
not_called ' update'

test_name='lists that are too old are updated, once'
new_machine apt-get
: >"$STATE/lists"
: >"$STATE/stale"
lab run
code_is 0
count_is 1 ' update'

test_name='a failed installation'
new_machine apt-get
: >"$STATE/apt_fails"
lab run
code_is 1
says 'E: no space left'
says 'installing failed.'
says "apt-get update && apt-get install -y --no-install-recommends $all_apt"
not_called '--preset'

test_name='a user with sudo'
new_machine apt-get sudo
with FAKE_UID=1000 -- run
code_is 0
called 'sudo env DEBIAN_FRONTEND=noninteractive apt-get'

test_name='a user with nothing missing needs no sudo'
full_machine
with FAKE_UID=1000 -- run
code_is 0
not_called sudo
not_called apt-get
with FAKE_UID=1000 -- test
code_is 0
not_called apt-get

test_name='a user without sudo'
new_machine apt-get
with FAKE_UID=1000 -- run
code_is 2
says 'Give an administrator this command:'
says "  apt-get update && apt-get install -y --no-install-recommends $all_apt"
not_called 'install -y'
check 'nothing was made' [ ! -e "$lab_folder/build" ]

test_name='a user whom sudo refuses'
new_machine apt-get sudo
: >"$STATE/no_sudoer"
with FAKE_UID=1000 -- run
code_is 2
says "  apt-get update && apt-get install -y"
not_called 'install -y'

test_name='dnf'
new_machine dnf
lab test
code_is 0
called 'dnf install -y gcc-c++ cmake ninja-build pkgconf-pkg-config cli11-devel json-devel pcre2-devel utf8proc-devel gtest-devel'

test_name='brew needs no root'
new_machine brew c++
with FAKE_UID=501 -- run
code_is 0
called 'brew install cmake ninja pkgconf cli11 nlohmann-json pcre2 utf8proc'

test_name='brew without a compiler'
new_machine brew
with FAKE_UID=501 -- run
code_is 2
says 'xcode-select --install'

test_name='no package manager'
new_machine c++
lab run
code_is 2
says '  cmake '
says_not '  compiler '
says 'install these yourself'

test_name='a CMake that is too old'
full_machine
echo 3.24.9 >"$STATE/cmake_version"
lab run
code_is 1
called 'install -y --no-install-recommends cmake'
says 'still missing: cmake, which plans the build (3.25 or newer); found: cmake version 3.24.9'
not_called '--preset'

test_name='versions are numbers, not texts'
for version in 3.100.2 4.0.3 10.1.0 3.25.0-rc1; do
  full_machine
  echo $version >"$STATE/cmake_version"
  lab run
  code_is 0
done
full_machine
echo 2.99.1 >"$STATE/cmake_version"
lab run
code_is 1

test_name='a compiler that is too old'
full_machine
: >"$STATE/old_compiler"
lab run
code_is 1
says 'still missing: compiler'
says 'found: c++ (stub) 12.2.0'

test_name='a folder configured by hand is kept'
full_machine
mkdir -p "$lab_folder/build/release"
: >"$lab_folder/build/release/build.ninja"
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$lab_folder" \
  >"$lab_folder/build/release/CMakeCache.txt"
lab run
code_is 0
called '--preset release'
not_called '--fresh'
rm "$lab_folder/build/release/.configured"
echo 'CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere' \
  >"$lab_folder/build/release/CMakeCache.txt"
: >"$CALLS"
lab run
called '--fresh'

test_name='another compiler starts anew'
full_machine
lab run
cp "$BIN/c++" "$BIN/other"
: >"$CALLS"
with CXX=other -- run
code_is 0
called 'cmake CXX=other --preset release -DKVLAB_WERROR=OFF --fresh'
: >"$CALLS"
with CXX=other -- run
not_called '--preset'

test_name='only a compiler of another name'
full_machine
mv "$BIN/c++" "$BIN/clang++-16"
lab run
code_is 0
called 'cmake CXX=clang++-16 --preset'

test_name='configuring fails'
full_machine
: >"$STATE/configure_fails"
lab run
code_is 1
says 'CMake Error: broken'
says "The whole log: $lab_folder/build/release.log"
rm "$STATE/configure_fails"
lab run
code_is 0

test_name='building fails'
full_machine
: >"$STATE/build_fails"
lab run
code_is 1
says 'a.cpp:1: error: the last line'
says 'compiler output 22'
says_not 'compiler output 21'
says "building release failed. The whole log: $lab_folder/build/release.log"
prints_not program
: >"$CALLS"
lab run
called pkg-config

test_name='KVLAB_WERROR and KVLAB_JOBS'
full_machine
with KVLAB_WERROR=ON KVLAB_JOBS=1 -- run
called '-DKVLAB_WERROR=ON'
called '-j 1'
lab run
called '-DKVLAB_WERROR=OFF'

test_name='a failing test'
full_machine
: >"$STATE/tests_fail"
printf '%s\n' '1/1 Testing: a_test' '[ RUN      ] A.One' \
  '[  FAILED  ] A.One (0 ms)' '[ RUN      ] A.Two' \
  '[       OK ] A.Two (0 ms)' 'Test Failed.' >"$STATE/ctest_log"
lab test
code_is 1
prints '1 passed, 1 failed, 0 skipped'

test_name='a crash, a test that did not start, plain programs'
printf '%s\n' '1/4 Testing: a_test' '[ RUN      ] A.One' 'Test Failed.' \
  '2/4 Testing: b' 'Command: ""' 'Test Passed.' '3/4 Testing: c' 'Test Passed.' \
  '4/4 Testing: d' '5 passed, 0 failed' 'Test Passed.' >"$STATE/ctest_log"
lab test
prints '6 passed, 2 failed, 0 skipped'

skip_log() {
  printf '%s\n' '1/1 Testing: a_test' "[ RUN      ] $1" 'a_test.cpp:7: Skipped' \
    'KVLAB_PAPER is' 'not set' "[  SKIPPED ] $1 (0 ms)" \
    '[  SKIPPED ] 1 test, listed below:' "[  SKIPPED ] $1" 'Test Passed.' \
    >"$STATE/ctest_log"
}

test_name='an allowed skip'
full_machine
skip_log Allowed.One
lab test
code_is 0
prints '  Allowed.One: KVLAB_PAPER is not set'
prints_not 'NOT ALLOWED'
prints '0 passed, 0 failed, 1 skipped'

test_name='a skip that KVLAB_REQUIRE forbids'
with KVLAB_REQUIRE=clang,paper -- test
code_is 1
prints 'NOT ALLOWED: KVLAB_REQUIRE has paper'
with KVLAB_REQUIRE=clang -- test
code_is 0

test_name='a name that KVLAB_REQUIRE cannot mean'
with KVLAB_REQUIRE=papper -- test
code_is 2
says 'KVLAB_REQUIRE names papper'

test_name='a skip that is not in the list'
skip_log Other.One
lab test
code_is 1
prints '  Other.One: KVLAB_PAPER is not set  NOT ALLOWED: not in tests/skips.txt'

test_name='a skip of a program that is no GoogleTest'
printf '%s\n' '1/1 Testing: a_test' 'SKIPPED: Allowed.x: no python: none' \
  'Test Passed.' >"$STATE/ctest_log"
lab test
code_is 0
prints '  Allowed.x: no python: none'
prints '0 passed, 0 failed, 1 skipped'

test_name='exercises: installs gdb and toml++, builds the preset lesson'
full_machine
lab exercises check 2 --work 'two words'
code_is 0
called 'install -y --no-install-recommends libtomlplusplus-dev gdb'
called '--preset lesson'
called 'build/lesson --target exercises'
not_called '--preset aarch64'
prints '<check>'
prints '<two words>'
lab exercises
code_is 0

test_name='exercises --aarch64: the programs for ARM too'
lab exercises check 2 --aarch64
called '--preset aarch64'
called 'build/aarch64 --target exercises'
prints '<--aarch64>'

test_name='test --full: what this machine cannot do is skipped'
full_machine
cp "$(command -v git)" "$BIN" 2>/dev/null || :
with KVLAB_WERROR=ON -- test --full
not_called '-LE full '
prints 'werror      passed'
prints 'clang       skipped'
prints 'no clang++-16 or newer clang++'
called '--preset debug'
called '--preset asan -DKVLAB_WERROR=OFF'
called '--preset tsan'
called '-LE full|house'
prints 'format      skipped'
prints 'shellcheck  skipped'
prints 'debug       passed '
prints 'bits        failed '

test_name='test --full: a part tells what it alone left out'
full_machine
skip_log Allowed.One
printf '%s\n' '2/2 Testing: b' 'SKIPPED: Allowed.slow: real_cpu: minutes' \
  'Test Passed.' >"$STATE/ctest_log_asan"
lab test --full
sed -n '/^asan /,/^tsan /p' "$home/out" >"$home/asan_rows"
check 'it stands under its row' \
  grep -qx '  Allowed.slow: real_cpu: minutes' "$home/asan_rows"
check 'not what all left out' sh -c "! grep -q Allowed.One '$home/asan_rows'"

test_name='test --full: what is required fails'
with KVLAB_REQUIRE=clang -- test --full
code_is 1
prints 'clang       failed '
prints 'KVLAB_REQUIRE has clang'

test_name='usage'
full_machine
lab frobnicate
code_is 2
says 'no such verb: frobnicate'
says 'usage: ./lab VERB'
check 'stdout is empty' empty "$home/out"
lab 'run test'
code_is 2
lab
code_is 2
says 'usage: ./lab VERB'
lab help
code_is 0
prints 'usage: ./lab VERB'
check 'stderr is empty' empty "$home/err"
lab test --quick
code_is 2
says 'test takes --full, not --quick'
with KVLAB_VECTORS=/no/such -- test
code_is 2
says 'KVLAB_VECTORS is /no/such, which is no folder'
check 'nothing was called' empty "$CALLS"

test_name='clean'
lab run
check 'there is something' [ -d "$lab_folder/build" ]
lab clean
code_is 0
check 'it is gone' [ ! -e "$lab_folder/build" ]
check 'the rest is there' [ -e "$lab_folder/lab" ]
lab clean all
code_is 2

test_name='through a link'
full_machine
ln -s "$lab_folder/lab" "$home/elsewhere/lab"
place=$lab_folder
lab_folder=$home/elsewhere
lab run
code_is 0
check 'built in its own folder' [ -d "$place/build" ]

test_name='a build folder of another user'
if [ "$(id -u)" -ne 0 ]; then
  full_machine
  mkdir "$lab_folder/build"
  chmod -w "$lab_folder/build"
  lab run
  code_is 1
  says 'cannot write to'
  chmod +w "$lab_folder/build"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
