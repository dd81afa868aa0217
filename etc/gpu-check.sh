#!/usr/bin/env bash
# Every kernel against its twin, every bench beside its target, the tiny model's answer: one table, on a machine with a
# GPU. usage: etc/gpu-check.sh [--commit ID] [--no-layers] [FOLDER]    FOLDER: a build folder (default build), or one
# that holds the programs test_cuda, bench_cuda, bench_model and troupe. Twenty layers of the released shape are made
# from a seed (100 GB on the device, two minutes); --no-layers leaves them out. Safe to run twice. Exits 1 when a kernel
# or the answer is wrong; a missed target is not an error. A row that did not run is printed as `not run`. Last output:
# bench/results/gpu_check.txt.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
if [ "${1:-}" = --commit ]; then commit=$2; shift 2; fi
layers=yes
if [ "${1:-}" = --no-layers ]; then layers=no; shift; fi
folder=${1:-$root/build}
program() { # NAME SUBFOLDER: where it is
  if [ -x "$folder/$2/$1" ]; then echo "$folder/$2/$1"; else echo "$folder/$1"; fi
}
test_cuda=$(program test_cuda tests) bench_cuda=$(program bench_cuda bench) troupe=$(program troupe .)
bench_model=$(program bench_model bench)
for p in "$test_cuda" "$bench_cuda" "$bench_model" "$troupe"; do
  [ -x "$p" ] || { echo "gpu-check: $p is missing: build test_cuda, bench_cuda, bench_model and troupe" >&2; exit 2; }
done
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
echo "# gpu-check, $(date -u +%Y-%m-%dT%H:%MZ), commit $commit, ${card:-no card}"
"$test_cuda" -ltc | grep -v -e '^\[doctest\]' -e '^===' >"$work/cases"
"$bench_cuda" --list >"$work/targets"
"$test_cuda" -r=xml >"$work/tests.xml" 2>"$work/tests.log" || true
"$bench_cuda" >"$work/bench.csv" 2>"$work/bench.log" || true
if [ "$layers" = yes ]; then # decode over layers 0..9 and 20..29, prompts over 0..19
  "$troupe" synth "$work/decode" --layers 0-9,20-29 >"$work/layers.log" 2>&1 &&
    "$bench_model" "$work/decode" --backend cuda --prompt 2048 --chunks 2048 >"$work/decode.csv" 2>>"$work/layers.log" || true
  "$troupe" synth "$work/prompt" --layers 0-19 >>"$work/layers.log" 2>&1 &&
    "$bench_model" "$work/prompt" --backend cuda --rows 1 --contexts 512 --graph-rows 0 >"$work/prompt.csv" 2>>"$work/layers.log" || true
  # what,rows,context,median ms,least ms,tokens/s,weights MB,limit ms,% -> what,us,least us,,,% of the limit,target
  awk -F, -v OFS=, '
    $1 == "decode" || $1 == "verify" { print "20 layers, " $1 " m=" $2 " at " $3, $4 * 1e3, $5 * 1e3, "", "", $9, ($2 == 1 ? 2200 : $2 == 4 ? 3500 : "-") }' \
    "$work/decode.csv" 2>/dev/null >>"$work/bench.csv" || true
  # the most of all rounds of one row, percent in place of us
  awk '/^# decode 1 at .* outside of the graph$/ { part = $6; if (part > most) most = part; ++n }
    END { if (n) print "20 layers, device idle in a decode round," most ",,,,," }' "$work/decode.csv" 2>/dev/null \
    >>"$work/bench.csv" || true
  awk -F, -v OFS=, '
    $1 == "prefill" { print "20 layers, prefill in chunks of " $2, $4 * 1e3, $5 * 1e3, "", "", $9, ($2 == 8192 ? 409600 : "-") }' \
    "$work/prompt.csv" 2>/dev/null >>"$work/bench.csv" || true
fi

row() { printf '%-86s | %-24s | %-34s | %s\n' "$1" "$2" "$3" "$4"; }
row what measured 'bound or target' result
# A case of the tests, and under it the worst comparison of each kernel in it.
awk -v cases="$work/cases" '
  function unescape(s) { gsub(/&lt;/, "<", s); gsub(/&gt;/, ">", s); gsub(/&quot;/, "\"", s); gsub(/&amp;/, "\\&", s); return s }
  function row(a, b, c, d) { printf "%-86s | %-24s | %-34s | %s\n", a, b, c, d }
  /<TestCase / && !/skipped="true"/ { name = $0; sub(/.*<TestCase name="/, "", name); sub(/" filename=.*/, "", name); name = unescape(name); result[name] = "FAIL (ended early)" }
  / error .*, bound / || /equal bits, bound / || /bits differ, bound / {
    line = unescape($0); sub(/^ +/, "", line)
    kernel = line; sub(/[,:].*/, "", kernel)
    bound = line; sub(/.*, bound /, "", bound)
    if (line ~ / error /) { error = line; sub(/.*: (max|rms) error /, "", error); sub(/,.*/, "", error); kind = line ~ /: rms error/ ? "rms " : "max "; good = error + 0 <= bound + 0 && error !~ /nan|inf/; size = good ? error / (bound > 0 ? bound : 1) : 1e30 }
    else { good = line !~ /differ/; error = good ? "equal bits" : "bits differ"; kind = ""; size = good ? 0 : 1e30 }
    key = name SUBSEP kernel
    if (!(key in worst)) { order[name] = order[name] "\n" kernel; worst[key] = -1 }
    ++n[key]
    if (size > worst[key]) { worst[key] = size; shown[key] = kind error; limit[key] = bound; ok[key] = good }
  }
  /test_case_success="/ { result[name] = /test_case_success="true"/ ? "pass" : "FAIL" } # not the sums at the end of all
  END {
    while ((getline name < cases) > 0) {
      row(name, "", "", name in result ? result[name] : "not run")
      count = split(order[name], kernels, "\n")
      for (i = 2; i <= count; ++i) { key = name SUBSEP kernels[i]; row("  " kernels[i] ", worst of " n[key], shown[key], limit[key], ok[key] ? "pass" : "FAIL") }
    }
  }' "$work/tests.xml" | tee "$work/table"
# Benches: what;target as listed, joined with what was measured. More rows than listed are shown too.
awk -F'[;]' -v measured="$work/bench.csv" '
  function row(a, b, c, d) { printf "%-86s | %-24s | %-34s | %s\n", a, b, c, d }
  function show(name, target) {
    if (target ~ /%/ && target ~ /of it/) { row(name, us[name] " %", "at most " target, us[name] + 0 <= target + 0 ? "met" : "missed"); seen[name] = 1; return }
    row(name, sprintf("%.4g us, %s %% of limit", us[name], part[name]), (aim[name] + 0 > 0 ? "at most " aim[name] " us" : target), aim[name] + 0 > 0 ? (us[name] + 0 <= aim[name] + 0 ? "met" : "missed") : "-"); seen[name] = 1
  }
  BEGIN { while ((getline line < measured) > 0) { if (line ~ /^#|^what,/ || (k = split(line, f, ",")) < 7) continue; name = f[1]; for (i = 2; i <= k - 6; ++i) name = name "," f[i]; us[name] = f[k - 5]; part[name] = f[k - 1]; aim[name] = f[k]; all[++n] = name } }
  { if ($1 in us) show($1, $2); else row($1, "", $2, "not run") }
  END { for (i = 1; i <= n; ++i) if (!(all[i] in seen)) show(all[i], "-") }' "$work/targets"
# The tiny model through the product.
answer="not run" result="not run" port=$((20000 + $$ % 20000))
"$troupe" serve --backend cuda --model "$root/etc/models/tiny" --host 127.0.0.1 --port "$port" >"$work/serve.log" 2>&1 & server=$!
for _ in $(seq 120); do
  kill -0 "$server" 2>/dev/null || break
  if "$troupe" status "http://127.0.0.1:$port" >/dev/null 2>&1; then
    answer=$("$troupe" smoke "http://127.0.0.1:$port" 2>&1) && result=pass || result=FAIL
    break
  fi
  sleep 0.5
done
row "smoke, what is 17*19 (tiny model on the device)" "$(grep -o "answered '.*ms" <<<"$answer" || echo "$answer")" "'323'" "$result"
[ "$result" = pass ] || tail -n 3 "$work/serve.log" | sed 's/^/# /'
! grep -q 'FAIL' "$work/table" && [ "$result" = pass ]
