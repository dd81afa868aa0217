#!/usr/bin/env bash
# Checks the walls of the tree: include order, third-party fences, file sizes, format.
# usage: etc/check.sh [--headers]     --headers also compiles every header alone (minutes)
# Prints each violation and exits 1 if there is one. The tables are those of the style page.
set -euo pipefail

cd "$(dirname "$0")/.."
bad=0
complain() { echo "check: $*" >&2; bad=1; }
sources() { git ls-files --cached --others --exclude-standard -- "$@" | grep -E '\.(h|cpp|cuh?)$' || true; }

# Who may include whom: net > actors > model > gpu > storage.
declare -A below=([storage]=storage [gpu]='gpu|storage' [model]='model|gpu|storage' [actors]='actors|model|storage' [net]='net|actors')  # and model/chat_types.h: what a request says, values without a header of CAF
for folder in storage gpu model actors net; do
  for f in $(sources "$folder"); do
    [ "$f" = net/main.cpp ] && continue
    allowed=${below[$folder]}
    case "$f" in
      actors/rank*.cpp | actors/system*.cpp) allowed+='|gpu' ;;
    esac
    while read -r line; do
      [[ "$line" =~ \"($allowed)/ ]] && continue
      [[ "$folder" = net && "$line" =~ \"(storage/(check|log)|model/chat_types)\.h\" ]] && continue
      complain "$f includes upwards or past a wall: $line"
    done < <(grep -hE '^#include "' "$f" || true)
  done
done

# Third-party headers stay inside their fence.
fence() { # NAME PATTERN ALLOWED-FILES
  for f in $(sources storage gpu model actors net | xargs grep -lE "^#include <($2)" || true); do
    [[ "$f" =~ ^($3) ]] || complain "$f includes $1, which stays in: $3"
  done
}
fence CAF 'caf/' 'actors/|net/'
fence Boost 'boost/' 'net/'
fence simdjson 'simdjson' 'net/|model/|storage/'
fence CLI11 'CLI/' 'actors/config|net/main'
fence prometheus-cpp 'prometheus/' 'net/'
fence 'PCRE2, utf8proc, libpng or libjpeg' 'pcre2|utf8proc|unicode/|png\.h|jpeglib' 'model/'
fence Highway 'hwy/' 'gpu/'
fence CUDA 'cuda|nccl' 'gpu/.*\.cu|gpu/nccl_collective'
fence liburing 'liburing' 'storage/'

# A file fits in the head: 400 lines, or a reason in its first three lines.
for f in $(sources storage gpu model actors net tests bench); do
  n=$(wc -l <"$f")
  if [ "$n" -gt 400 ] && ! head -n 3 "$f" | grep -qi 'over 400 lines'; then complain "$f has $n lines, 400 at most"; fi
  head -n 1 "$f" | grep -q '^//' || complain "$f does not begin with its purpose"
done
for f in $(sources storage gpu model actors net | grep '\.h$' | grep -v -e '-inl\.h$'); do # those are read once a target
  grep -q '^#pragma once' "$f" || complain "$f lacks #pragma once"
done
if command -v clang-format >/dev/null; then
  mapfile -t unformatted < <(sources storage gpu model actors net tests bench |
    xargs -P "$(nproc)" -n 40 clang-format --dry-run -Werror 2>&1 | sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: error.*/\1/p' | sort -u)
  for f in "${unformatted[@]}"; do complain "$f is not formatted (clang-format -i)"; done
fi
if [ "${1:-}" = --headers ]; then
  for f in $(sources storage gpu model actors net | grep '\.h$'); do
    g++ -std=c++20 -I. -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL -fsyntax-only -x c++ "$f" 2>/dev/null || complain "$f does not compile alone"
  done
fi
[ "$bad" -eq 0 ] && echo "check: walls, fences, sizes and format are in order"
exit "$bad"
