#!/usr/bin/env bash
# Builds the libFuzzer targets with clang and runs each for a time. usage: etc/fuzz.sh [SECONDS (600)] [TARGET...]
# New inputs go to build-fuzz/found/TARGET, crashes to build-fuzz/crash/TARGET; the last lines are a table of what ran.
# Fails if a target finds something. The checked-in corpora are replayed by the ordinary tests, without clang.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
seconds=600
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then seconds=$1; shift; fi
etc/deps.sh --fuzz
out=$root/build-fuzz
mkdir -p "$out"

base='storage/check.cpp storage/log.cpp'
words='model/tokenizer.cpp model/tokenizer_file.cpp model/byte_pairs.cpp model/pretokenizer.cpp model/string_matcher.cpp model/utf8_stream.cpp'
declare -A sources=(
  [safetensors]="storage/safetensors_header.cpp storage/file.cpp storage/dtype.cpp $base"
  [tokenizer]="$words $base"
  [output_parser]="$(cd "$root" && echo model/deepseek_v41/{output_parser,call_block,call_builder,json_text,markers}.cpp) model/stop_strings.cpp $words $base"
  [image]="model/image.cpp model/image_png.cpp model/image_jpeg.cpp $base"
)
for f in tests/fuzz/*_fuzz.cpp; do
  target=$(basename "$f" _fuzz.cpp)
  # A target whose first lines hold "Sources: a.cpp b.cpp" says itself what it needs.
  own=$(sed -n 's|^// Sources: ||p' "$f" | tr '\n' ' ')
  [ -z "$own" ] || sources[$target]="$own $base"
done
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(printf '%s\n' "${!sources[@]}" | sort)

table=()
status=0
for t in "${targets[@]}"; do
  [ -n "${sources[$t]:-}" ] || { echo "fuzz: no target '$t'" >&2; exit 2; }
  # shellcheck disable=SC2086
  clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize=null -I. -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL \
    -DBOOST_ASIO_DISABLE_CONCEPTS "tests/fuzz/${t}_fuzz.cpp" ${sources[$t]} -o "$out/$t" \
    -lsimdjson -lpcre2-8 -lutf8proc -lpng -ljpeg -lspdlog -lfmt -lprometheus-cpp-core -lcaf_core -lpthread
  mkdir -p "$out/found/$t" "$out/crash/$t"
  dictionary=()
  [ ! -e "tests/fuzz/$t.dict" ] || dictionary=("-dict=tests/fuzz/$t.dict")
  echo "fuzz: $t for $seconds s"
  "$out/$t" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -max_len=16384 -print_final_stats=1 "${dictionary[@]}" \
    -artifact_prefix="$out/crash/$t/" "$out/found/$t" "tests/fuzz/corpus/$t" >"$out/$t.log" 2>&1 || status=1
  start=$(sed -n 's/.*INITED *cov: \([0-9]*\).*/\1/p' "$out/$t.log" | head -n 1)
  end=$(sed -n 's/.*cov: \([0-9]*\).*/\1/p' "$out/$t.log" | tail -n 1)
  runs=$(sed -n 's/.*number_of_executed_units: *//p' "$out/$t.log")
  table+=("$t,$seconds,${runs:-?},${start:-?},${end:-?},$(find "$out/crash/$t" -type f | wc -l)")
done
echo "target,seconds,executions,coverage_start,coverage_end,findings"
printf '%s\n' "${table[@]}"
exit "$status"
