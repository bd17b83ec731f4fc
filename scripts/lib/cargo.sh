# shellcheck shell=bash
# Cargo's configuration for this machine, which scripts/setup writes, and where cargo builds. Sourced after common.sh.

readonly CONFIG=$DAISY_ROOT/.cargo/config.toml
readonly CONFIG_MARK="# Written by scripts/setup"

# The declarations made here must be those of the mlx-sys that cargo will compile.
check_lock() {
  local locked=
  [ ! -e "$DAISY_ROOT/Cargo.lock" ] || locked=$(sed -n '/^name = "mlx-sys"$/{n;s/^version = "\(.*\)"$/\1/p;}' "$DAISY_ROOT/Cargo.lock")
  [ "${locked:-$MLX_SYS_VERSION}" = "$MLX_SYS_VERSION" ] ||
    fail "Cargo.lock has mlx-sys $locked, and scripts/setup prepares $MLX_SYS_VERSION" \
      "change the pins in scripts/lib/common.sh, scripts/mlx/wheels.sh and scripts/mlx/bindgen/Cargo.toml together"
}

# What DAISY_TARGET_DIR says now, or said when the configuration was written; where CI=true, `shared`.
target_choice() {
  local recorded=
  if [ "${CI:-}" = true ]; then
    recorded=shared
  elif [ -e "$CONFIG" ]; then
    recorded=$(sed -n 's/^# DAISY_TARGET_DIR=//p' "$CONFIG")
  fi
  echo "${DAISY_TARGET_DIR-$recorded}"
}

target_dir() {
  local choice
  choice=$(target_choice)
  case $choice in
    "") echo "$DAISY_ROOT/target" ;;
    # By compiler version, because a target directory keeps what every compiler left in it.
    shared) echo "$DAISY_CACHE/target-$(rustc --version | cut -d ' ' -f 2)" ;;
    *) plain_path DAISY_TARGET_DIR "$choice" && echo "$choice" ;;
  esac
}

# mlx-sys declares `links = "mlx"`: given this, cargo takes these answers instead of running its build script, which
# can only link on macOS, and there only with all of Xcode.
#
# Linux: RUNPATH, not RPATH, so that LD_LIBRARY_PATH can put another MLX first, such as the one for CUDA. A packaged
# binary looks beside itself first, for mlx/lib as in the wheel.
config() {
  local triple=$1 dir=$2 choice=$3 target=$4 rpath cxx
  case $triple in
    *-apple-darwin) rpath="-Wl,-rpath,$dir/mlx/lib" cxx=c++ ;;
    *) rpath="-Wl,--enable-new-dtags,-rpath,\$ORIGIN/mlx/lib:$dir/mlx/lib" cxx=stdc++ ;;
  esac
  cat <<END
$CONFIG_MARK for this machine, not committed. Do not edit: run scripts/setup again.
# DAISY_TARGET_DIR=$choice

[target.$triple]
rustflags = ["-C", "link-arg=$rpath"]

[target.$triple.mlx]
rustc-link-search = ["native=$dir/lib", "native=$dir/mlx/lib"]
rustc-link-lib = ["static=mlxc", "static=daisy_mlx_compat", "dylib=mlx", "dylib=$cxx"]
rustc-env = { OUT_DIR = "$dir/out" }
END
  # Else what is built here is marked for a macOS older than MLX takes, and the linker warns of it.
  [ "$cxx" = stdc++ ] || printf '\n[env]\nMACOSX_DEPLOYMENT_TARGET = "14.0"\n'
  [ -z "$choice" ] || printf '\n[build]\ntarget-dir = "%s"\n' "$target"
}

write_config() {
  local choice target new
  choice=$(target_choice)
  target=$(target_dir)
  new=$(config "$1" "$2" "$choice" "$target")
  if [ -e "$CONFIG" ]; then
    case $(head -n 1 "$CONFIG") in
      "$CONFIG_MARK"*) ;;
      *) fail ".cargo/config.toml was not written by scripts/setup, and is left as it is" \
        "move your lines to ~/.cargo/config.toml or into a .cargo above the clone, which cargo reads as well; remove the file; run scripts/setup again" ;;
    esac
    [ "$(cat "$CONFIG")" != "$new" ] || return 0
  fi
  mkdir -p "${CONFIG%/*}"
  printf '%s\n' "$new" >"$CONFIG.new"
  mv "$CONFIG.new" "$CONFIG"
}
