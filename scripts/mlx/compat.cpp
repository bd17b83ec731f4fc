// The functions that mlx-rs calls and that this build of mlx-c or the system lacks.
//
// mlx-c has its float16 and bfloat16 accessors only where the C compiler has such types. Here they exist on every
// architecture, with 16 plain bits in the place of the number: callers pass and get pointers only, so the ABI is
// the same. build.sh keeps mlx-c's own ones out (MLX_HALF_H) lest they are there twice.

#include <time.h>

#include <cstdint>
#include <exception>

#include "mlx/c/error.h"
#include "mlx/c/private/array.h"

namespace {

template <typename T>
int item(uint16_t* res, mlx_array arr) {
  static_assert(sizeof(T) == sizeof(uint16_t));
  try {
    T value = mlx_array_get_(arr).item<T>();
    __builtin_memcpy(res, &value, sizeof value);
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}

template <typename T>
const uint16_t* data(mlx_array arr) {
  try {
    return reinterpret_cast<const uint16_t*>(mlx_array_get_(arr).data<T>());
  } catch (std::exception& e) {
    mlx_error(e.what());
    return nullptr;
  }
}

} // namespace

extern "C" {

int mlx_array_item_float16(uint16_t* res, const mlx_array arr) {
  return item<mlx::core::float16_t>(res, arr);
}

int mlx_array_item_bfloat16(uint16_t* res, const mlx_array arr) {
  return item<mlx::core::bfloat16_t>(res, arr);
}

const uint16_t* mlx_array_data_float16(const mlx_array arr) {
  return data<mlx::core::float16_t>(arr);
}

const uint16_t* mlx_array_data_bfloat16(const mlx_array arr) {
  return data<mlx::core::bfloat16_t>(arr);
}

#ifndef __APPLE__
// A clock of macOS, from which mlx-rs seeds its random numbers where it is given no seed.
uint64_t mach_approximate_time(void) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}
#endif

} // extern "C"
