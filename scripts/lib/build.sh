# shellcheck shell=bash
# One build and one imported model for demo, tests and bench. Sourced after common.sh.
# shellcheck source-path=SCRIPTDIR source=linux.sh
. "$DAISY_ROOT/scripts/lib/linux.sh"
# shellcheck source-path=SCRIPTDIR source=extras.sh
. "$DAISY_ROOT/scripts/lib/extras.sh"

# Where clones share a target directory, cargo names a clone's crates by their place in it and sees a change by a file's
# time alone: another clone's crates may seem built already. So where another clone came before, ours are forgotten.
claim_target() {
  local target
  target=$(target_dir)
  [ "$target" != "$DAISY_ROOT/target" ] || return 0
  mkdir -p "$target"
  [ "$(cat "$target/clone" 2>/dev/null)" != "$DAISY_ROOT" ] || return 0
  rm -rf "$target"/*/.fingerprint/daisy*
  echo "$DAISY_ROOT" >"$target/clone"
}

# Builds the debug binary (dependencies are optimised, and MLX does the work) and names it in DAISY_BIN.
build_daisy() {
  say "Building daisy (about 5 minutes from nothing on 2 cores)"
  claim_target
  (cd "$DAISY_ROOT" && cargo build --locked --quiet --bin daisy) ||
    fail "the build failed" "the compiler's reason stands above"
  DAISY_BIN=$(target_dir)/debug/daisy
}

# Builds what scripts/bench runs, optimised throughout, and names it in DAISY_BIN, DAISY_HOP and DAISY_WIRE.
build_bench() {
  local artefacts
  say "Building the release binary and the benches (about 10 minutes from nothing on 2 cores)"
  artefacts=$(cd "$DAISY_ROOT" && cargo build --locked --quiet --release --bin daisy --bench hop --bench wire \
    --message-format json) || fail "the build failed" "cargo build --release --bench hop shows the reason"
  DAISY_BIN=$(target_dir)/release/daisy
  DAISY_HOP=$(executable hop "$artefacts")
  DAISY_WIRE=$(executable wire "$artefacts")
  export DAISY_BIN DAISY_HOP DAISY_WIRE
}

# executable NAME MESSAGES : where cargo put the bench.
executable() {
  printf '%s\n' "$2" | python3 -c '
import json, sys
for message in map(json.loads, sys.stdin):
    if message.get("executable") and message["target"]["name"] == sys.argv[1]:
        print(message["executable"])' "$1"
}

# The small real model as an MLX checkpoint, imported once per importer; prints its directory.
small_model() {
  local key dir
  setup_model >&2
  key=$(cd "$DAISY_ROOT" && find src/store -name '*.rs' -print0 | LC_ALL=C sort -z | xargs -0 cat | cksum | cut -d ' ' -f 1)
  dir=$DAISY_CACHE/models-$key/SmolLM2-135M-Instruct
  [ -d "$dir" ] || "$DAISY_BIN" model import "$MODEL_GGUF" --out "$dir" >/dev/null ||
    fail "could not import $MODEL_GGUF" "the reason stands above"
  echo "$dir"
}

# What LD_PRELOAD takes for the speedy BLAS; DAISY_BLAS=reference keeps MLX's own.
openblas_preload() {
  [ "${DAISY_BLAS:-openblas}" = reference ] || openblas
}
