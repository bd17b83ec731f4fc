# shellcheck shell=bash disable=SC2154 # profile, work and out are the sourcing script's
# Making the tars of scripts/package. Sourced after common.sh, build.sh, macos.sh and cuda.sh.
# shellcheck source-path=SCRIPTDIR source=../mlx/wheels.sh
. "$DAISY_ROOT/scripts/mlx/wheels.sh"

# What a Mac's binary calls itself and where it looks for libmlx.dylib: beside itself, or, called by a link in a `bin`
# that the loader did not follow, where install puts it.
readonly MACOS_RPATHS=(@loader_path @loader_path/../lib/daisy)

daisy_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' "$DAISY_ROOT/Cargo.toml"; }

# The oldest macOS that MLX's wheel is for, as the kernels in it say.
oldest_macos() { if [ "$1" = 26 ]; then echo 26.2; else echo "$1.0"; fi; }

# package_macos VERSION : linked anew for each, since the binary says which macOS it is for; all else is built once.
package_macos() {
  local version=$1 name dir oldest rpath library cargo=(rustc --bin daisy) link=() checks=() libraries=()
  is_bookworm || fail "packages for macOS are made on Debian bookworm, x86-64" "run it there, or in a container of it"
  name=daisy-$(daisy_version)-macos$version-arm64 dir=$work/$name oldest=$(oldest_macos "$version")
  say "Packaging $name"
  prepare_for_macos || fail "could not make the toolchain for macOS" "the reason stands above"
  for rpath in "${MACOS_RPATHS[@]}"; do
    link+=(-C "link-arg=-Wl,-rpath,$rpath") checks+=(--rpath "$rpath")
  done
  [ "$profile" = dev ] || cargo+=(--release)
  [ "$profile" = dev ] || link+=(-C link-arg=-s)
  macos_cargo "${cargo[@]}" -- "${link[@]}" -C "link-arg=-mmacosx-version-min=$oldest" ||
    fail "could not build daisy for macOS" "the compiler's reason stands above"

  mkdir "$dir"
  fetch_mlx "macos-$version" "$work/wheel-$version" || fail "could not fetch MLX from PyPI" "pip's reason stands above"
  cp "$(macos_dir)/target/$MACOS_TARGET/${profile/dev/debug}/daisy" "$work/wheel-$version"/mlx/lib/mlx.metallib "$dir"
  # For macOS 26, libmlx.dylib needs the library for RDMA over Thunderbolt that comes with it.
  for library in libmlx.dylib libjaccl.dylib; do
    if [ "$library" = libmlx.dylib ] || grep -q "@rpath/$library" "$dir/libmlx.dylib"; then
      cp "$work/wheel-$version/mlx/lib/$library" "$dir"
      libraries+=("$dir/$library")
    fi
  done
  python3 "$DAISY_ROOT/scripts/macos/symbols.py" --oldest "$oldest" "${checks[@]}" "$MACOS_SYMBOLS" "$dir/daisy" \
    "${libraries[@]}" >&2 || fail "the binary would not run on macOS $oldest" "the names stand above"
  cat >"$dir/package" <<END
os=macos
arch=arm64
kind=metal
oldest=$oldest
for=macOS $oldest or later
instead=macOS 14 takes the package named macos14, 15.0 to 26.1 the one named macos15, 26.2 or later the one named macos26
END
  add_licences "$MACOS_TARGET" "$dir" "$work/wheel-$version"
  make_tar "$name"
}

package_linux() {
  local kind=$1 name dir libs
  [ "$DAISY_OS" = Linux ] || fail "packages for Linux are made on Linux" "run it there"
  name=daisy-$(daisy_version)-linux-$DAISY_ARCH-$kind
  [ "$kind" = cpu ] || name+="13"
  dir=$work/$name
  say "Packaging $name"
  build_packaged
  mkdir "$dir" "$dir/mlx"
  if [ "$kind" = cuda ]; then
    fetch_cuda_mlx "$work/wheel" || fail "could not fetch MLX for CUDA from PyPI" "pip's reason stands above"
    # It compiles kernels at run time against these headers.
    cp -R "$work/wheel/mlx/include" "$dir/mlx"
  else
    mkdir "$work/wheel" && cp -R "$(mlx_dir)"/{mlx,mlx_cpu.libs,*.dist-info} "$work/wheel"
  fi
  mkdir "$dir/mlx/lib"
  cp "$work/wheel/mlx/lib/libmlx.so" "$dir/mlx/lib"
  for libs in "$work/wheel"/*.libs; do cp -R "$libs" "$dir"; done
  cp "$DAISY_BIN" "$dir/daisy"
  python3 "$DAISY_ROOT/scripts/packaging/runpath.py" "$dir/daisy" "\$ORIGIN/mlx/lib" "$(mlx_dir)/mlx/lib" ||
    fail "the binary's run path is not what scripts/setup gives it" "run scripts/setup again"
  cat >"$dir/package" <<END
os=linux
arch=$(uname -m)
kind=$kind
oldest=2.35
for=Linux with glibc 2.35 or later
instead=Debian 12 and Ubuntu 22.04 are new enough
END
  [ "$kind" = cpu ] || nvidia_facts >>"$dir/package"
  add_licences "$(rustc -vV | sed -n 's/^host: //p')" "$dir" "$work/wheel"
  make_tar "$name"
}

# Names the binary in DAISY_BIN. Symbols go, for they are most of it.
build_packaged() {
  if [ "$profile" = dev ]; then
    build_daisy
    return
  fi
  say "Building daisy (about 10 minutes from nothing on 2 cores)"
  claim_target
  (cd "$DAISY_ROOT" && cargo rustc --locked --quiet --release --bin daisy -- -C strip=symbols) ||
    fail "the build failed" "the compiler's reason stands above"
  DAISY_BIN=$(target_dir)/release/daisy
}

# MLX alone of the wheels that scripts/setup --cuda brings.
fetch_cuda_mlx() {
  local sums
  read -ra sums <<<"$(printf %s "$CUDA_WHEELS" | sed -n '/^mlx-cuda-13==/,/==/{/==/d;p;}' | tr '\n' ' ')"
  download_wheel "$1" "manylinux_2_35_$DAISY_ARCH" "mlx-cuda-13==$MLX_VERSION" "${sums[@]}"
}

# What install asks for: NVIDIA's packages and the libraries in them. The driver itself brings libcuda.
nvidia_facts() {
  echo "nvidia=$(printf %s "$CUDA_WHEELS" | grep '^nvidia-' | tr '\n' ' ' | sed 's/ $//')"
  echo "libraries=libnccl.so.2 libcublasLt.so.13 libcufft.so.12 libnvrtc.so.13 libcudnn.so.9"
}

# add_licences TRIPLE DIR WHEEL
add_licences() {
  local licences=$2/licences
  mkdir "$licences"
  cp "$DAISY_ROOT"/LICENSE-{APACHE,MIT} "$licences"
  cp "$3"/mlx_*.dist-info/licenses/LICENSE "$licences/MLX.txt"
  (cd "$DAISY_ROOT" && python3 scripts/packaging/notices.py "$1") >"$licences/THIRD-PARTY.md"
  if compgen -G "$2/mlx_*.libs" >/dev/null; then cp "$DAISY_ROOT/scripts/packaging/GNU-AND-LAPACK.md" "$licences"; fi
}

# make_tar NAME : the directory of that name, with what is the same for all, as one file whose bytes depend on the
# commit alone; says how large it is.
make_tar() {
  local name=$1 tar=$out/$1.tar.gz time
  cp "$DAISY_ROOT/scripts/packaging/install" "$work/$name"
  find "$work/$name" -type d -exec chmod 755 {} + -o -type f -exec chmod 644 {} +
  chmod 755 "$work/$name"/{install,daisy}
  time=$(git -C "$DAISY_ROOT" log -1 --format=%ct 2>/dev/null || echo 0)
  tar --create --directory "$work" --sort=name --mtime="@$time" --owner=0 --group=0 --numeric-owner --format=ustar "$name" |
    gzip --no-name "${DAISY_GZIP:--9}" >"$tar.new"
  mv "$tar.new" "$tar"
  (cd "$out" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
  rm -rf "${work:?}/$name"
  say "$tar: $(($(wc -c <"$tar") / 1000000)) MB"
}
