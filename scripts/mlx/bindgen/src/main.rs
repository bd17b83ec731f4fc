//! Writes `bindings.rs` for mlx-sys: what its own build script does, for our build of mlx-c.
//!
//! Usage: `daisy-mlx-bindgen MLX_C_ROOT OUTPUT`. The options are mlx-sys's own: its `bindgen_config.rs` is compiled
//! in from its package, whose directory `MLX_SYS_DIR` names at build time.

use std::{env, path::PathBuf};

mod bindgen_config {
    include!(concat!(env!("MLX_SYS_DIR"), "/src/bindgen_config.rs"));
}

/// What mlx-rs expects of the half types, and `compat.cpp` provides. bindgen gives the same names on macOS.
const HALVES: &str = "\
#[repr(transparent)]
#[derive(Debug, Default, Copy, Clone)]
pub struct float16_t(pub u16);
pub type bfloat16_t = u16;
unsafe extern \"C\" {
    pub fn mlx_array_item_float16(res: *mut float16_t, arr: mlx_array) -> ::std::os::raw::c_int;
    pub fn mlx_array_item_bfloat16(res: *mut bfloat16_t, arr: mlx_array) -> ::std::os::raw::c_int;
    pub fn mlx_array_data_float16(arr: mlx_array) -> *const float16_t;
    pub fn mlx_array_data_bfloat16(arr: mlx_array) -> *const bfloat16_t;
}";

fn main() {
    let mut args = env::args_os().skip(1).map(PathBuf::from);
    let (Some(root), Some(output), None) = (args.next(), args.next(), args.next()) else {
        panic!("usage: daisy-mlx-bindgen MLX_C_ROOT OUTPUT");
    };
    let headers = bindgen_config::discover_headers(&root).expect("the mlx-c headers are readable");
    bindgen_config::builder(&root, &headers)
        // half.h would declare the half types on Arm only, and in a way that older clangs refuse.
        .clang_arg("-DMLX_HALF_H")
        .raw_line(HALVES)
        .generate()
        .expect("bindgen reads the mlx-c headers")
        .write_to_file(&output)
        .expect("the output is writable");
}
