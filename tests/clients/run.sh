#!/usr/bin/env bash
# The official npm client against a running troupe: installs the pinned package once, then runs every claim.
# usage: tests/clients/run.sh BASE_URL            e.g. tests/clients/run.sh http://127.0.0.1:8888
# Exit status: 0 all passed, 1 a claim failed, 77 node, npm or the package is not to be had (ctest: skipped).
set -euo pipefail

base=${1:?run.sh: BASE_URL is missing, e.g. http://127.0.0.1:8888}
cd "$(dirname "$0")"
for tool in node npm; do
  command -v "$tool" >/dev/null || { echo "clients: $tool is not installed: skipped" >&2; exit 77; }
done
wanted=$(node -p "require('./package.json').dependencies.openai")
have=$(node -p "require('./node_modules/openai/package.json').version" 2>/dev/null || true)
if [ "$have" != "$wanted" ]; then
  npm ci --no-audit --no-fund --loglevel=error || { echo "clients: npm could not fetch openai $wanted: skipped" >&2; exit 77; }
fi
exec node openai_client.mjs "$base"
