#!/usr/bin/env bash
# Installs what building (and with --test, testing) troupe needs on Debian 12 or a relative of it.
# usage: etc/deps.sh [--test] [--fuzz]     safe to run twice; touches nothing when all is there
# Needs root or sudo and apt only when something is missing. CUDA is optional and never installed here.
set -euo pipefail

packages=(g++ cmake ninja-build ccache pkg-config git ca-certificates
  libcaf-dev libboost1.81-dev libsimdjson-dev libspdlog-dev libfmt-dev prometheus-cpp-dev
  liburing-dev libgoogle-perftools-dev libxxhash-dev libpcre2-dev libutf8proc-dev libhwy-dev libpng-dev libjpeg62-turbo-dev zlib1g-dev libssl-dev
  doctest-dev)
for arg in "$@"; do
  case "$arg" in
    --test) packages+=(curl) ; command -v node >/dev/null && command -v npm >/dev/null || packages+=(nodejs npm) ;;
    --fuzz) packages+=(clang-14 libclang-rt-14-dev) ;;
    *) echo "deps: unknown argument '$arg' (know --test and --fuzz)" >&2; exit 2 ;;
  esac
done

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || { echo "deps: this machine has no apt-get; install by hand: ${missing[*]}" >&2; exit 1; }
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "deps: need root or sudo to install: ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
free_mb=$(df -Pm /usr | awk 'NR == 2 {print $4}')
[ "$free_mb" -ge 2048 ] || { echo "deps: /usr has ${free_mb} MB free, installing needs 2048 MB" >&2; exit 1; }
echo "deps: installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "${sudo[@]}" apt-get update >"$log" 2>&1 || grep -qE '^(Err|E):' "$log"; then
  tail -n 3 "$log" >&2
  echo "deps: apt-get update failed; is there a network?" >&2
fi
if ! DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  echo "deps: could not install ${missing[*]}; see the lines above (no network, or disk full?)" >&2
  exit 1
fi
echo "deps: done"
