//! Whether MLX's Metal kernels are there and fit this macOS, asked before MLX starts and told in words.
//!
//! On a Mac MLX reads its kernels from `mlx.metallib`, beside `libmlx.dylib`, when it first meets the GPU. Without
//! it, or with one for a newer macOS, MLX ends the process with a message about a "default library". Knows neither
//! models nor devices. Start at [`check_kernels`]; [`verdict`] decides, and runs anywhere.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::ffi;

/// Why this machine cannot use the kernels that lie there.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KernelsError {
    #[error(
        "{} is missing: MLX's kernels for the GPU belong beside libmlx.dylib; install Daisy again",
        path.display()
    )]
    Missing { path: PathBuf },
    #[error("{} cannot be read: {reason}; install Daisy again", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("{} holds no kernels for macOS; install Daisy again", path.display())]
    Foreign { path: PathBuf },
    #[error(
        "this Daisy needs macOS {needed} or later, and this Mac has {running}; install the package for \
         macOS {} or update macOS", running.0
    )]
    TooNew { needed: MacOs, running: MacOs },
}

/// A version of macOS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MacOs(pub u16, pub u16);

impl MacOs {
    /// From `15.7.2`, as the system says it.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim().split('.').map(str::parse);
        let major = numbers.next()?.ok()?;
        let minor = numbers.next().unwrap_or(Ok(0)).ok()?;
        Some(Self(major, minor))
    }
}

impl fmt::Display for MacOs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Says why MLX could not start here. Elsewhere than on a Mac, and where MLX is part of the program (which then was
/// built on this Mac and knows where its kernels are), there is nothing to check.
pub fn check_kernels() -> Result<(), KernelsError> {
    if !cfg!(target_os = "macos") {
        return Ok(());
    }
    let Some(library) = ffi::mlx_library() else { return Ok(()) };
    let Some(path) = kernels_of(&library) else { return Ok(()) };
    // A system that does not say its version runs what it has.
    let running = ffi::os_version().as_deref().and_then(MacOs::parse);
    verdict(path.clone(), header(&path), running)
}

/// Where the kernels of this library belong; none where the library is not MLX alone.
fn kernels_of(library: &Path) -> Option<PathBuf> {
    let named = library.file_name().is_some_and(|name| name == "libmlx.dylib");
    named.then(|| library.with_file_name("mlx.metallib"))
}

fn header(path: &Path) -> io::Result<[u8; HEADER_BYTES]> {
    let mut header = [0; HEADER_BYTES];
    File::open(path)?.read_exact(&mut header)?;
    Ok(header)
}

/// Whether kernels with this beginning run on this macOS.
fn verdict(
    path: PathBuf,
    header: io::Result<[u8; HEADER_BYTES]>,
    running: Option<MacOs>,
) -> Result<(), KernelsError> {
    let header = match header {
        Ok(header) => header,
        Err(error) => {
            return Err(match error.kind() {
                io::ErrorKind::NotFound => KernelsError::Missing { path },
                io::ErrorKind::UnexpectedEof => KernelsError::Foreign { path },
                _ => KernelsError::Unreadable { path, reason: error.to_string() },
            });
        }
    };
    let Some(needed) = target(&header) else { return Err(KernelsError::Foreign { path }) };
    match running {
        Some(running) if running < needed => Err(KernelsError::TooNew { needed, running }),
        _ => Ok(()),
    }
}

/// The macOS that a Metal library is for. Its first bytes, as seen in MLX's wheels for macOS 14, 15 and 26.2: `MTLB`,
/// the platform at 4, three numbers of the format, the kind of system at 11, its version at 12 and 14.
fn target(header: &[u8; HEADER_BYTES]) -> Option<MacOs> {
    let [b'M', b'T', b'L', b'B', 0x01, 0x80, _, _, _, _, _, 0x81, major @ .., m0, m1] = header
    else {
        return None;
    };
    Some(MacOs(u16::from_le_bytes(*major), u16::from_le_bytes([*m0, *m1])))
}

const HEADER_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginnings of the three wheels' own files.
    const FOR_14: [u8; HEADER_BYTES] = *b"MTLB\x01\x80\x02\x00\x07\x00\x00\x81\x0e\x00\x00\x00";
    const FOR_15: [u8; HEADER_BYTES] = *b"MTLB\x01\x80\x02\x00\x08\x00\x00\x81\x0f\x00\x00\x00";
    const FOR_26: [u8; HEADER_BYTES] = *b"MTLB\x01\x80\x02\x00\x09\x00\x00\x81\x1a\x00\x02\x00";

    #[test]
    fn kernels_run_on_their_macos_and_later_ones() {
        let path = || PathBuf::from("/opt/daisy/mlx.metallib");
        for (header, running, fits) in [
            (FOR_14, MacOs(14, 0), true),
            (FOR_14, MacOs(14, 7), true),
            (FOR_14, MacOs(26, 2), true),
            (FOR_15, MacOs(14, 7), false),
            (FOR_15, MacOs(15, 0), true),
            (FOR_26, MacOs(15, 7), false),
            (FOR_26, MacOs(26, 1), false),
            (FOR_26, MacOs(26, 2), true),
            (FOR_26, MacOs(27, 0), true),
        ] {
            let answer = verdict(path(), Ok(header), Some(running));
            assert_eq!(answer.is_ok(), fits, "{header:?} on {running}: {answer:?}");
        }
        assert_eq!(verdict(path(), Ok(FOR_26), None), Ok(()));
        let message =
            verdict(path(), Ok(FOR_26), Some(MacOs(26, 0))).expect_err("too old").to_string();
        assert!(message.contains("needs macOS 26.2 or later, and this Mac has 26.0"), "{message}");
    }

    #[test]
    fn files_that_are_no_kernels_are_refused_by_path() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("mlx.metallib");
        let ask = |path: &Path| verdict(path.to_owned(), header(path), Some(MacOs(26, 2)));
        let missing = ask(&path).expect_err("nothing there");
        assert_eq!(missing, KernelsError::Missing { path: path.clone() });
        assert!(missing.to_string().contains("mlx.metallib is missing"), "{missing}");
        let mut for_phones = FOR_26;
        for_phones[11] = 0x82;
        for content in [&b"MTLB"[..], b"", b"not a library of kernels", &for_phones] {
            std::fs::write(&path, content).expect("written");
            assert_eq!(
                ask(&path),
                Err(KernelsError::Foreign { path: path.clone() }),
                "{content:?}"
            );
        }
        std::fs::write(&path, FOR_26).expect("written");
        assert_eq!(ask(&path), Ok(()));
        let unreadable = ask(dir.path()).expect_err("a folder");
        assert!(matches!(unreadable, KernelsError::Unreadable { .. }), "{unreadable}");
    }

    #[test]
    fn only_mlx_own_library_has_kernels_beside_it() {
        assert_eq!(
            kernels_of(Path::new("/opt/daisy/libmlx.dylib")),
            Some(PathBuf::from("/opt/daisy/mlx.metallib"))
        );
        assert_eq!(kernels_of(Path::new("/opt/daisy/daisy")), None);
    }

    #[test]
    fn the_library_that_is_loaded_is_found() {
        let library = ffi::mlx_library().expect("MLX is linked");
        let name = library.file_name().expect("a file").to_string_lossy().into_owned();
        assert!(name.starts_with("libmlx."), "{name}");
        assert!(library.exists(), "{}", library.display());
    }

    #[test]
    fn versions_are_read_as_the_system_writes_them() {
        for (text, version) in [
            ("15.7.2", Some(MacOs(15, 7))),
            ("26.2\n", Some(MacOs(26, 2))),
            ("14", Some(MacOs(14, 0))),
            ("", None),
            ("x.1", None),
        ] {
            assert_eq!(MacOs::parse(text), version, "{text:?}");
        }
    }
}
