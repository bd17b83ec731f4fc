# shellcheck shell=bash
# scripts/setup --cuda: MLX for NVIDIA GPUs, which the same binary loads. Sourced after common.sh and linux.sh.

# PyPI's checksums, x86-64 then arm64. MLX's wheel names the NVIDIA packages; the versions are those of CUDA 13.0,
# because a driver runs libraries of its own CUDA version and older, and 580 is the first driver of 13.
readonly CUDA_WHEELS="
mlx-cuda-13==$MLX_VERSION
  335094ccd1c0c6dc3e09c8caba207c8180602bacc0c38ba20c1d81e9456ab394
  49b1a25df9021f3b519a534fd39a32a5cdbf93a1b265a31e59671c2d9fc9f4a2
nvidia-cublas==13.1.0.3
  ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171
  c86fc7f7ae36d7528288c5d88098edcb7b02c633d262e7ddbb86b0ad91be5df2
nvidia-cuda-nvrtc==13.0.88
  ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575
  d27f20a0ca67a4bb34268a5e951033496c5b74870b868bacd046b1b8e0c3267b
nvidia-cuda-runtime==13.0.96
  7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
  ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55
nvidia-cudnn-cu13==9.19.0.56
  d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf
  6ed29ffaee1176c612daf442e4dd6cfeb6a0caa43ddcbeb59da94953030b1be4
nvidia-cufft==12.0.0.61
  6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3
  2708c852ef8cd89d1d2068bdbece0aa188813a0c934db3779b9b1faa8442e5f5
nvidia-nccl-cu13==2.28.9
  e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42
  01c873ba1626b54caa12272ed228dc5b2781545e0ae8ba3f432a8ef1c6d78643
"
CUDA_DIR=$DAISY_CACHE/mlx-cuda-13-$MLX_VERSION-$(printf %s "$CUDA_WHEELS" | cksum | cut -d ' ' -f 1)

setup_cuda() {
  [ "$DAISY_OS" = Linux ] || fail "MLX for CUDA runs on Linux only" "on a Mac, Metal is used without any setup"
  [ -e "$CUDA_DIR" ] || lock_cache
  if [ ! -e "$CUDA_DIR" ]; then
    check_glibc
    install_packages fetching
    rm -rf "$CUDA_DIR.new"
    mkdir -p "$CUDA_DIR.new"
    say "Fetching MLX for CUDA and NVIDIA's libraries from PyPI (1.4 GB)"
    fetch_cuda "$CUDA_DIR.new" ||
      fail "could not fetch MLX for CUDA from PyPI" "is the network there? what is above is pip's reason; run it again"
    mv "$CUDA_DIR.new" "$CUDA_DIR"
  fi
  say "ready: MLX $MLX_VERSION for CUDA 13, in $CUDA_DIR"
  say "The binary that runs on the CPU runs on the GPU when it finds this library first. Start the node so:"
  say "  LD_LIBRARY_PATH=$CUDA_DIR/mlx/lib daisy cluster up"
  [ -e /proc/driver/nvidia/version ] || say "note: no NVIDIA driver is loaded on this machine; CUDA 13 needs driver 580 or later"
}

# All wheels side by side, as pip installs them: libmlx.so finds NVIDIA's libraries from its own place.
fetch_cuda() {
  local dest=$1 word requirement='' platforms=() glibc wheel
  for word in $CUDA_WHEELS; do
    case $word in
      *==*) requirement+="${requirement:+$'\n'}$word" ;;
      *) requirement+=" --hash=sha256:$word" ;;
    esac
  done
  for glibc in 35 27 18 17 12; do platforms+=(--platform "manylinux_2_${glibc}_$DAISY_ARCH"); done
  mkdir "$dest/wheels" && echo "$requirement" >"$dest/wheels/requirements.txt" &&
    python3 -m pip download --disable-pip-version-check --quiet --no-deps --only-binary=:all: --python-version 3.12 \
      "${platforms[@]}" --dest "$dest/wheels" --requirement "$dest/wheels/requirements.txt" || return
  for wheel in "$dest"/wheels/*.whl; do
    python3 -m zipfile -e "$wheel" "$dest" || return
  done
  # Kernels are compiled at run time against CUDA's headers, which MLX looks for under the name of CUDA 12's package.
  rm -r "$dest/wheels" && ln -s cu13 "$dest/nvidia/cuda_runtime"
}
