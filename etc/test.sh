#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the tests.
# usage: etc/test.sh [--fast] [--asan | --tsan]     --fast: only the inner loop; default: fast and slow
# Safe to run twice. Each configuration has its own build folder: build, build-asan, build-tsan.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
labels='fast|slow'
folder=$root/build
options=(-DTROUPE_SANITIZE=)
for arg in "$@"; do
  case "$arg" in
    --fast) labels='fast' ;;
    --asan) folder=$root/build-asan; options=(-DTROUPE_SANITIZE=address) ;;
    --tsan) folder=$root/build-tsan; options=(-DTROUPE_SANITIZE=thread) ;;
    -h | --help) sed -n '2,4p' "$0" | cut -c3-; exit 0 ;;
    *) echo "test: unknown argument '$arg' (know --fast, --asan, --tsan)" >&2; exit 2 ;;
  esac
done

"$root/etc/deps.sh" --test
"$root/etc/build.sh" "$folder" all -- "${options[@]}"
# spec/caf.md section 8: the packaged CAF is not instrumented, so hand-overs inside it look like races.
export TSAN_OPTIONS="ignore_noninstrumented_modules=1:suppressions=$root/etc/tsan.supp:halt_on_error=1"
export ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1" UBSAN_OPTIONS="print_stacktrace=1"
"$root/etc/check.sh"
status=0
ctest --test-dir "$folder" --output-on-failure -L "^($labels)$" | tee "$folder/ctest.log" || status=$?
# What the tests counted: cases of data beside the tree run where that folder exists, and are named where it does not.
log=$folder/Testing/Temporary/LastTest.log
counted=$(sed -n 's/.*MESSAGE: \(.*\(ran\|absent\|compared\).*\)/  \1/p' "$log" | sort -u)
echo "test: data cases ($(grep -c 'golden .*: ran' "$log" || true) golden runs, $(grep -c 'golden .*: absent' "$log" || true) absent)"
echo "$counted"
grep 'tests passed' "$folder/ctest.log" || true
exit "$status"
