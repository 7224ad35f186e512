#!/bin/sh
# training_test.sh SOURCE: the unit tests of the lab model's training code, where
# Python is there. Prints what it skipped and why, for `./lab test`.
set -eu

if ! command -v python3 >/dev/null 2>&1; then
  echo 'SKIPPED: training_test: no python3 on this machine'
  exit 77
fi
cd "$1/common/lab_model/training"
exec python3 -B - <<'END'
import sys
import unittest

sys.path.insert(0, ".")
suite = unittest.defaultTestLoader.discover(".", pattern="test_*.py")
result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
for test, why in result.skipped:
    print(f"SKIPPED: training.{test.id().split('.', 1)[-1]}: {why}")
bad = len(result.failures) + len(result.errors)
good = result.testsRun - bad - len(result.skipped)
print(f"{good} passed, {bad} failed, {len(result.skipped)} skipped")
if result.testsRun == 0:
    sys.exit("no test found")
sys.exit(1 if bad or result.unexpectedSuccesses else 0)
END
