#!/usr/bin/env bash
# From a fresh clone to a served model: installs what is missing, builds, serves at http://127.0.0.1:8888.
# usage: etc/start.sh [--build-only] [ARGUMENTS OF troupe serve...]     e.g. etc/start.sh --port 9000 --model /models/x
# Safe to run twice; the second start takes seconds. Stop with Ctrl-C: requests in flight finish first.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build_only=false
arguments=()
port=${TROUPE_PORT:-8888}
while [ $# -gt 0 ]; do
  case "$1" in
    --build-only) build_only=true ;;
    -h | --help) sed -n '2,4p' "$0" | cut -c3-; exit 0 ;;
    --port) port=${2:?start: --port needs a number}; arguments+=("$1" "$2"); shift ;;
    --port=*) port=${1#*=}; arguments+=("$1") ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

# A busy port is worth knowing before a build, not after it.
if ! $build_only && [ "$port" != 0 ] && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
  echo "start: port $port of 127.0.0.1 is busy; choose another with --port N" >&2
  exit 2
fi
"$root/etc/deps.sh"
"$root/etc/build.sh" "$root/build" troupe
if $build_only; then
  echo "start: built $root/build/troupe"
  exit 0
fi
exec "$root/build/troupe" serve "${arguments[@]}"
