#!/usr/bin/env bash
# Installs a tar into an empty directory and tries it there: it sees no cache, no Rust and no environment of ours, says
# its version, loads its own MLX, and answers over HTTP from a tiny checkpoint.
#
#   scripts/packaging/try.sh TAR
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

work=$(mktemp -d "${TMPDIR:-/tmp}/daisy-try.XXXXXX")
pid=''
cleanup() {
  [ -z "$pid" ] || { kill -TERM "$pid" && wait "$pid"; } 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
mkdir "$work/home" "$work/tar"
tar -xzf "$1" -C "$work/tar"
# As a user has it who installed nothing else. No function: in the background that would be a shell around the command,
# and the shell's end is not the command's.
clean=(env -i HOME="$work/home" PATH=/usr/bin:/bin:/usr/sbin:/sbin TMPDIR="$work" DAISY_HOME="$work/home/d")
"${clean[@]}" "$work"/tar/*/install
rm -r "$work/tar" # What is installed needs nothing of it.
daisy=$work/home/.local/bin/daisy
"${clean[@]}" "$daisy" --version

# Which MLX is loaded: the installed one, and no other that this machine has.
if [ "$DAISY_OS" = Linux ]; then
  loaded=$("${clean[@]}" ldd "$work/home/.local/lib/daisy/daisy")
  if grep 'not found' <<<"$loaded"; then fail "a library is missing" "ldd's line stands above"; fi
  for library in libmlx libblas liblapack libgfortran; do
    grep "$library" <<<"$loaded" | grep -qF "$work/home/.local/lib/daisy/" ||
      fail "$library is not the package's own" "$loaded"
  done
  if grep -aqF "$DAISY_CACHE" "$work/home/.local/lib/daisy/daisy"; then
    fail "the binary names this machine's cache" "scripts/packaging/runpath.py takes it out"
  fi
fi

: >"$work/log" # It is read before the server may have opened it.
"${clean[@]}" "$daisy" cluster serve --model "$DAISY_ROOT/tests/data/tiny/llama-f32" --port 0 --listen 127.0.0.1:0 >"$work/log" 2>&1 &
pid=$!
for ((tries = 0; tries < 600; tries++)); do
  url=$(sed -n 's/.*OpenAI endpoint.*: \(http.*\)\/chat\/completions$/\1/p' "$work/log")
  [ -z "$url" ] || break
  kill -0 "$pid" 2>/dev/null || { cat "$work/log" >&2 && fail "daisy ended early" "its output stands above"; }
  sleep 0.1
done
[ -n "$url" ] || { cat "$work/log" >&2 && fail "daisy does not serve after a minute" "its output stands above"; }
grep -E '^\[rank' "$work/log" >&2 || true
python3 "$DAISY_ROOT/scripts/lib/ask.py" "$url" "Hello" --max-tokens 8
say "the package works: ${1##*/}"
