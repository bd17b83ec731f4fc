//! Every `unsafe` of the project: MLX calls that mlx-rs does not cover or covers with a copy, and
//! the few calls of the system that the standard library lacks.
//!
//! Each function is safe to call: what C demands is checked here or stated where it is guaranteed.
//! MLX reports errors to mlx-rs's handler, which keeps them per thread; a failed call here becomes
//! a [`Failed`] with what it was doing. [`install_error_handler`] must have run before the first
//! call, since mlx-c's own handler ends the process.
#![allow(unsafe_code, reason = "the one file for calls that the compiler cannot check")]

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use mlx_rs::{Array, Dtype, Stream};

/// An MLX call that did not succeed; what it was about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failed(pub(super) &'static str);

/// Makes MLX's errors come back as values. mlx-rs installs its handler at its first fallible call,
/// so one that cannot fail is made.
pub(super) fn install_error_handler() -> Result<(), mlx_rs::error::Exception> {
    mlx_rs::memory::active_memory().map(drop)
}

/// `array[start..stop]` by axis, without mlx-rs's general indexing.
pub(super) fn slice(array: &Array, start: &[i32], stop: &[i32]) -> Result<Array, Failed> {
    let strides = vec![1; start.len()];
    let stream = Stream::thread_local_or_default();
    checked_rank(array, &[start, stop])?;
    // SAFETY: the handles live through the call, the three lists have the lengths that are passed,
    // and MLX checks their values against the shape.
    let (status, result) = unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_slice(
            &raw mut result,
            array.as_ptr(),
            start.as_ptr(),
            start.len(),
            stop.as_ptr(),
            stop.len(),
            strides.as_ptr(),
            strides.len(),
            stream.as_ptr(),
        );
        (status, Array::from_ptr(result))
    };
    if status == SUCCESS { Ok(result) } else { Err(Failed("slicing an array")) }
}

/// `array` with `update` written to `[start..stop]`. Takes the array: MLX writes in place only
/// where nothing else refers to it.
pub(super) fn slice_update(
    array: Array,
    update: &Array,
    start: &[i32],
    stop: &[i32],
) -> Result<Array, Failed> {
    let strides = vec![1; start.len()];
    let stream = Stream::thread_local_or_default();
    checked_rank(&array, &[start, stop])?;
    // SAFETY: as in `slice`.
    let (status, result) = unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_slice_update(
            &raw mut result,
            array.as_ptr(),
            update.as_ptr(),
            start.as_ptr(),
            start.len(),
            stop.as_ptr(),
            stop.len(),
            strides.as_ptr(),
            strides.len(),
            stream.as_ptr(),
        );
        (status, Array::from_ptr(result))
    };
    drop(array);
    if status == SUCCESS { Ok(result) } else { Err(Failed("updating an array in place")) }
}

/// Quantised weights as MLX takes them apart.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    pub(super) weight: &'a Array,
    pub(super) scales: &'a Array,
    /// In affine mode alone.
    pub(super) biases: Option<&'a Array>,
    pub(super) group_size: i32,
    pub(super) bits: i32,
    /// As MLX names it.
    pub(super) mode: &'a CStr,
}

impl Packed<'_> {
    fn biases(&self) -> mlx_sys::mlx_array {
        self.biases.map_or(NO_ARRAY, Array::as_ptr)
    }
}

/// `x Wᵀ` in any mode of quantisation; mlx-rs knows the affine one.
pub(super) fn quantized_matmul(x: &Array, packed: &Packed<'_>) -> Result<Array, Failed> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: the handles live through the call, the mode is a C string, and MLX checks shapes,
    // types, mode and form.
    let (status, result) = unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_quantized_matmul(
            &raw mut result,
            x.as_ptr(),
            packed.weight.as_ptr(),
            packed.scales.as_ptr(),
            packed.biases(),
            true,
            some(packed.group_size),
            some(packed.bits),
            packed.mode.as_ptr(),
            stream.as_ptr(),
        );
        (status, Array::from_ptr(result))
    };
    if status == SUCCESS { Ok(result) } else { Err(Failed("multiplying with quantised weights")) }
}

/// `x Wᵀ` with the matrix of a stack that each of `indices` names, in any mode of quantisation.
pub(super) fn gather_qmm(
    x: &Array,
    packed: &Packed<'_>,
    indices: &Array,
    sorted: bool,
) -> Result<Array, Failed> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: as in `quantized_matmul`; without indices for `x` MLX counts its rows through.
    let (status, result) = unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_gather_qmm(
            &raw mut result,
            x.as_ptr(),
            packed.weight.as_ptr(),
            packed.scales.as_ptr(),
            packed.biases(),
            NO_ARRAY,
            indices.as_ptr(),
            true,
            some(packed.group_size),
            some(packed.bits),
            packed.mode.as_ptr(),
            sorted,
            stream.as_ptr(),
        );
        (status, Array::from_ptr(result))
    };
    if status == SUCCESS { Ok(result) } else { Err(Failed("multiplying with quantised experts")) }
}

/// The floats of quantised weights, in `dtype`.
pub(super) fn dequantize(packed: &Packed<'_>, dtype: Dtype) -> Result<Array, Failed> {
    let stream = Stream::thread_local_or_default();
    let dtype = mlx_sys::mlx_optional_dtype { value: dtype.into(), has_value: true };
    // SAFETY: as in `quantized_matmul`.
    let (status, result) = unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_dequantize(
            &raw mut result,
            packed.weight.as_ptr(),
            packed.scales.as_ptr(),
            packed.biases(),
            some(packed.group_size),
            some(packed.bits),
            packed.mode.as_ptr(),
            NO_ARRAY,
            dtype,
            stream.as_ptr(),
        );
        (status, Array::from_ptr(result))
    };
    if status == SUCCESS { Ok(result) } else { Err(Failed("unpacking quantised weights")) }
}

/// A row-major array of `dtype` (a float type) from little-endian bytes, copied.
pub(super) fn array_from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<Array, Failed> {
    let failed = Failed("making an array from bytes");
    let size = match dtype {
        Dtype::Float32 => size_of::<f32>(),
        Dtype::Float16 | Dtype::Bfloat16 => size_of::<u16>(),
        _ => return Err(failed),
    };
    let elements = shape.iter().try_fold(size, |n, d| n.checked_mul(usize::try_from(*d).ok()?));
    if elements != Some(bytes.len()) {
        return Err(failed);
    }
    // MLX reads elements, so the address must suit their type; network buffers need not.
    let aligned: Vec<u32>;
    let data: *const c_void = if bytes.as_ptr().addr().is_multiple_of(size) {
        bytes.as_ptr().cast()
    } else {
        aligned = aligned_words(bytes);
        aligned.as_ptr().cast()
    };
    // SAFETY: `data` points to as many aligned elements as `shape` asks for, and MLX copies them
    // before it returns.
    Ok(unsafe { Array::from_raw_data(data, shape, dtype) })
}

/// The bytes of an evaluated, row-major array. Empty for an array without elements.
pub(super) fn array_bytes(array: &Array) -> Result<&[u8], Failed> {
    let failed = Failed("reading an array's bytes");
    if array.size() == 0 {
        return Ok(&[]);
    }
    array.eval().map_err(|_| failed)?;
    let mut contiguous = false;
    // SAFETY: the handle is valid and evaluated; the pointer is MLX's data for `nbytes` bytes while
    // the array lives, which the returned lifetime says, and any byte is a valid u8. The accessor
    // must suit the element type.
    unsafe {
        let status = mlx_sys::_mlx_array_is_row_contiguous(&raw mut contiguous, array.as_ptr());
        let data: *const u8 = match array.dtype() {
            Dtype::Float32 => mlx_sys::mlx_array_data_float32(array.as_ptr()).cast(),
            Dtype::Float16 => mlx_sys::mlx_array_data_float16(array.as_ptr()).cast(),
            Dtype::Bfloat16 => mlx_sys::mlx_array_data_bfloat16(array.as_ptr()).cast(),
            _ => return Err(failed),
        };
        if status != SUCCESS || !contiguous || data.is_null() {
            return Err(failed);
        }
        Ok(std::slice::from_raw_parts(data, array.nbytes()))
    }
}

/// Whether an array's values are there, without waiting for them.
#[cfg(test)]
pub(super) fn is_available(array: &Array) -> bool {
    let mut available = false;
    // SAFETY: the handle is valid; MLX only reads its state.
    let status = unsafe { mlx_sys::_mlx_array_is_available(&raw mut available, array.as_ptr()) };
    status == SUCCESS && available
}

/// Waits until this thread's stream has done all, the freeing of what was in between included.
#[cfg(test)]
pub(super) fn synchronize() -> Result<(), Failed> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: the handle is valid.
    let status = unsafe { mlx_sys::mlx_synchronize(stream.as_ptr()) };
    if status == SUCCESS { Ok(()) } else { Err(Failed("waiting for a stream")) }
}

/// What the GPU calls itself; none where MLX does not say.
pub(super) fn gpu_name() -> Option<String> {
    // SAFETY: every handle is made here and freed here; the string is copied before its owner goes.
    unsafe {
        let device = mlx_sys::mlx_device_new_type(mlx_sys::mlx_device_type__MLX_GPU, 0);
        let mut info = mlx_sys::mlx_device_info_new();
        let mut text: *const c_char = std::ptr::null();
        let found = mlx_sys::mlx_device_info_get(&raw mut info, device) == SUCCESS
            && mlx_sys::mlx_device_info_get_string(&raw mut text, info, c"device_name".as_ptr())
                == SUCCESS
            && !text.is_null();
        let name = found.then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
        mlx_sys::mlx_device_info_free(info);
        mlx_sys::mlx_device_free(device);
        name
    }
}

/// The library that does MLX's matrix products on this CPU, as far as it can be told.
pub fn blas_name() -> String {
    if cfg!(target_os = "macos") {
        return "Accelerate".to_owned();
    }
    let symbol = CString::new("openblas_get_config").expect("holds no zero byte");
    // SAFETY: the lookup takes any name. OpenBLAS documents the function under that name as taking
    // nothing and returning a string that lives as long as the library, which is never unloaded.
    unsafe {
        let address = libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr());
        if address.is_null() {
            return "reference BLAS".to_owned();
        }
        let config: unsafe extern "C" fn() -> *const c_char = std::mem::transmute(address);
        let text = config();
        if text.is_null() {
            return "OpenBLAS".to_owned();
        }
        // Such as "OpenBLAS 0.3.21 NO_AFFINITY …": name and version say enough.
        let text = CStr::from_ptr(text).to_string_lossy();
        text.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    }
}

/// The file that MLX was loaded from.
pub(super) fn mlx_library() -> Option<PathBuf> {
    unsafe extern "C" {
        // `mlx::core::version()`: any function of the library serves, and this one stays. Never called.
        #[link_name = "_ZN3mlx4core7versionEv"]
        safe static MLX_VERSION_FUNCTION: c_char;
    }
    // SAFETY: the lookup takes any address and writes all of `info`; zeros are valid in it. The name lives as long as
    // the library, and is copied.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let address = (&raw const MLX_VERSION_FUNCTION).cast::<c_void>();
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let name = CStr::from_ptr(info.dli_fname);
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }
}

/// What macOS says is its version; none elsewhere.
#[cfg(target_os = "macos")]
pub(super) fn os_version() -> Option<String> {
    let mut text = [0_u8; 64];
    let mut length = text.len();
    // SAFETY: the name is a C string, and the system writes at most `length` bytes, and into `length` how many.
    let status = unsafe {
        libc::sysctlbyname(
            c"kern.osproductversion".as_ptr(),
            text.as_mut_ptr().cast(),
            &raw mut length,
            std::ptr::null_mut(),
            0,
        )
    };
    let text = CStr::from_bytes_until_nul(&text).ok()?;
    (status == SUCCESS).then(|| text.to_string_lossy().into_owned())
}

#[cfg(not(target_os = "macos"))]
pub(super) fn os_version() -> Option<String> {
    None
}

/// Ends the process at once: no destructors and no `atexit`, where MLX could wait for a device.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: takes any code and does not return.
    unsafe { libc::_exit(code) }
}

fn checked_rank(array: &Array, lists: &[&[i32]]) -> Result<(), Failed> {
    if lists.iter().all(|list| list.len() == array.ndim()) {
        return Ok(());
    }
    Err(Failed("slicing: one start and one stop per axis"))
}

fn aligned_words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        u32::from_ne_bytes(word)
    };
    bytes.chunks(size_of::<u32>()).map(word).collect()
}

const fn some(value: i32) -> mlx_sys::mlx_optional_int {
    mlx_sys::mlx_optional_int { value, has_value: true }
}

/// What mlx-c takes for an array that is not there.
const NO_ARRAY: mlx_sys::mlx_array = mlx_sys::mlx_array { ctx: std::ptr::null_mut() };
const SUCCESS: i32 = 0;
