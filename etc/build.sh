#!/usr/bin/env bash
# Configures and builds into a folder. usage: etc/build.sh FOLDER TARGET... [-- CMAKE_ARGUMENT...]
# Called by start.sh and test.sh; safe to run twice. Says what it does and fails with one clear line.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
folder=$1; shift
targets=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do targets+=("$1"); shift; done
[ $# -eq 0 ] || shift

mkdir -p "$folder"
free_mb=$(df -Pm "$folder" | awk 'NR == 2 {print $4}')
[ "$free_mb" -ge 2048 ] || { echo "build: $folder has ${free_mb} MB free, a build needs 2048 MB" >&2; exit 1; }
# Sources of actors or sockets, compiled together, take up to 1.4 GB.
jobs=$(nproc)
memory_jobs=$(awk '/MemAvailable/ {print int($2 / 1400000)}' /proc/meminfo)
[ "$memory_jobs" -ge "$jobs" ] || jobs=$(( memory_jobs > 0 ? memory_jobs : 1 ))
command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || echo "build: no nvcc here: building for the CPU only"
echo "build: $folder (${targets[*]}), $jobs jobs"
cmake -S "$root" -B "$folder" -G Ninja "$@" >"$folder/configure.log" 2>&1 || {
  tail -n 12 "$folder/configure.log" >&2
  echo "build: configuring failed, see $folder/configure.log" >&2
  exit 1
}
cmake --build "$folder" -j "$jobs" --target "${targets[@]}" >"$folder/build.log" 2>&1 || {
  grep -E -m 8 'error|FAILED|No space left' "$folder/build.log" >&2 || tail -n 12 "$folder/build.log" >&2
  echo "build: compiling failed, see $folder/build.log" >&2
  exit 1
}
