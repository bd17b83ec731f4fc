// Brought into every mlx-c file by force: they use std::format and rely on another header to bring it.
// GCC has it from version 13 on; before that, fmt (header-only) is the same function under another name.
#pragma once

#include <version>

#ifdef __cpp_lib_format
#include <format>
#else
#define FMT_HEADER_ONLY
#include <fmt/format.h>
namespace std {
using fmt::format;
}
#endif
