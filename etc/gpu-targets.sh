#!/usr/bin/env bash
# Compiles every CUDA source for every target of ours that nvcc knows, and writes a table: ok, or what failed and why.
# usage: etc/gpu-targets.sh [--jobs N] [--commit ID] [--keep FOLDER] [LOG]    default: one job, build/cuda_targets.log
# --keep: the objects stay, as FOLDER/TARGET.NAME.o. About four minutes of one core a target; at low priority. Safe to
# run twice. What was not compiled when it is interrupted says `not run`. Summary: bench/results/cuda_targets.txt.
set -euo pipefail

cd "$(dirname "$0")/.."
targets=(90a 80 89 100 120 121)
jobs=1 keep='' commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
while [[ "${1:-}" = --* ]]; do
  case "$1" in
    --jobs) jobs=$2 ;;
    --commit) commit=$2 ;;
    --keep) keep=$2 ;;
    *) echo "gpu-targets: unknown argument '$1' (know --jobs, --commit, --keep)" >&2; exit 2 ;;
  esac
  shift 2
done
log=${1:-build/cuda_targets.log}
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || { echo "gpu-targets: no nvcc here" >&2; exit 2; }
mkdir -p "$(dirname "$log")"
work=$(mktemp -d)
[ -n "$keep" ] || keep=$work
mkdir -p "$keep"
known=$("$nvcc" --list-gpu-code)
summary() { # what there is of each target, then the errors
  echo "# etc/gpu-targets.sh, $(date -u +%Y-%m-%d), commit $commit, nvcc $("$nvcc" --version | grep -o 'V[0-9.]*$')"
  echo "# $(ls gpu/*.cu | wc -l) sources, -O3 --fmad=false"
  for t in "${targets[@]}"; do
    grep -q "sm_${t%a}$" <<<"$known" || { echo "sm_$t: unknown to this nvcc"; continue; }
    ok=0 failed='' missing=''
    for f in gpu/*.cu; do
      n=$(basename "$f" .cu)
      if [ -e "$work/$t.$n.ok" ]; then ok=$((ok + 1)); elif [ -e "$work/$t.$n.bad" ]; then failed+=" $n"; else missing+=" $n"; fi
    done
    if [ "$ok$failed" = 0 ]; then echo "sm_$t: not run"; continue; fi
    echo "sm_$t: $ok ok${failed:+; error:$failed}${missing:+; not run:$missing}"
  done
  for f in "$work"/*.bad; do [ ! -e "$f" ] || { echo "== $(basename "$f" .bad)"; cat "$f"; }; done
}
trap 'summary | tee "$log"; rm -rf "$work"' EXIT
compile() { # TARGET NAME
  if nice -n 15 "$nvcc" -std=c++20 -O3 --fmad=false -DTROUPE_CUDA=1 -I. -gencode "arch=compute_$1,code=sm_$1" \
    -c "gpu/$2.cu" -o "$keep/$1.$2.o" >"$work/$1.$2.said" 2>&1; then : >"$work/$1.$2.ok"; else mv "$work/$1.$2.said" "$work/$1.$2.bad"; fi
}
export -f compile
export nvcc keep work
for t in "${targets[@]}"; do
  ! grep -q "sm_${t%a}$" <<<"$known" || for f in $(ls -S gpu/*trellis*.cu gpu/*bytes*.cu gpu/*.cu | awk '!seen[$0]++'); do echo "$t $(basename "$f" .cu)"; done
done >"$work/list"
xargs -a "$work/list" -P "$jobs" -L 1 bash -c 'compile "$0" "$1"' &
trap 'kill $! 2>/dev/null; exit 1' INT TERM
wait $!
! ls "$work"/*.bad >/dev/null 2>&1
