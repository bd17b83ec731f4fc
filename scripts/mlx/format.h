// Brought into every mlx-c file by force: they use std::format and rely on another header to bring it.
// GCC has it from version 13 on; before that, fmt (header-only) is the same function under another name. Clang's library
// had it for years before it said so.
#pragma once

#include <version>

#if defined(__cpp_lib_format) || defined(_LIBCPP_VERSION)
#include <format>
#else
#define FMT_HEADER_ONLY
#include <fmt/format.h>
namespace std {
using fmt::format;
}
#endif
