//! This machine's Daisy as one file that another machine of its kind can install: what a package holds
//! and `install` put beside the program (docs/packaging.md).

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use aws_lc_rs::digest::{self, SHA256};
use data_encoding::HEXLOWER;

use super::scripts::own_system;
use crate::cli::Failure;
use crate::cli::introduction::refusal;

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bundle {
    dir: PathBuf,
}

/// Its tar, in a file that is gone when it is dropped.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) file: File,
    pub(super) bytes: u64,
    /// In hexadecimal digits.
    pub(super) sha256: String,
}

impl Bundle {
    /// The package that the running program is of.
    pub(super) fn here() -> Result<Self, Failure> {
        let program = std::env::current_exe().and_then(fs::canonicalize);
        let program = program.context("this program does not know its own path")?;
        Self::around(&program)
    }

    fn around(program: &Path) -> Result<Self, Failure> {
        let dir = program.parent().unwrap_or(Path::new("/")).to_owned();
        // `install` copies the facts and itself beside the program.
        if ["package", "install", "daisy"].iter().all(|name| dir.join(name).is_file()) {
            return Ok(Self { dir });
        }
        Err(Failure::Refused(refusal(
            format!(
                "--install copies an installed package, and {} is none: it was built from source",
                program.display()
            ),
            &["build or install Daisy on the other machine, then pair without --install"],
        )))
    }

    /// Whether this machine's can run on one where `uname -sm` says this.
    pub(super) fn check(there: &str, system: &str) -> Result<(), Failure> {
        let own = own_system();
        if system == own {
            return Ok(());
        }
        Err(Failure::Refused(refusal(
            format!("{there} is {system}, this machine is {own}: its Daisy does not run there"),
            &["install the package for that system there, then pair without --install"],
        )))
    }

    /// In `scratch`, any folder with room.
    pub(super) fn pack(&self, scratch: &Path) -> Result<Packed, Failure> {
        let packed =
            self.write(scratch).with_context(|| format!("cannot pack {}", self.dir.display()));
        Ok(packed?)
    }

    fn write(&self, scratch: &Path) -> io::Result<Packed> {
        let mut tar = tar::Builder::new(Counted::new(tempfile::tempfile_in(scratch)?));
        tar.follow_symlinks(false);
        tar.mode(tar::HeaderMode::Deterministic);
        let mut names = fs::read_dir(&self.dir)?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<io::Result<Vec<_>>>()?;
        names.sort();
        // Links into this machine's CUDA, which `install` makes anew.
        names.retain(|name| name != "nvidia");
        for name in names {
            let path = self.dir.join(&name);
            if fs::symlink_metadata(&path)?.is_dir() {
                tar.append_dir_all(&name, &path)?;
            } else {
                tar.append_path_with_name(&path, &name)?;
            }
        }
        let Counted { mut file, bytes, sum } = tar.into_inner()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Packed { file, bytes, sha256: HEXLOWER.encode(sum.finish().as_ref()) })
    }
}

impl Packed {
    /// The next piece; empty at the end.
    pub(super) fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        Read::by_ref(&mut self.file).take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
        Ok(piece)
    }
}

/// Counts and sums up what is written.
struct Counted {
    file: File,
    bytes: u64,
    sum: digest::Context,
}

impl Counted {
    fn new(file: File) -> Self {
        Self { file, bytes: 0, sum: digest::Context::new(&SHA256) }
    }
}

impl Write for Counted {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.file.write(buffer)?;
        self.bytes += count as u64;
        self.sum.update(&buffer[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

const PIECE_BYTES: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn message(failure: Failure) -> String {
        match failure {
            Failure::Refused(refusal) => format!("{} {}", refusal.message, refusal.hints.join(" ")),
            Failure::Other(error) => error.to_string(),
        }
    }

    #[test]
    fn an_installed_package_is_packed_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["package", "install", "daisy"] {
            fs::write(dir.path().join(name), name).expect("written");
        }
        fs::set_permissions(dir.path().join("daisy"), PermissionsExt::from_mode(0o755))
            .expect("set");
        fs::create_dir_all(dir.path().join("mlx/lib")).expect("a folder");
        fs::write(dir.path().join("mlx/lib/libmlx.so"), vec![7; 3 * PIECE_BYTES]).expect("written");
        fs::create_dir(dir.path().join("nvidia")).expect("a folder");
        symlink("/nowhere", dir.path().join("nvidia/cu13")).expect("linked");

        let bundle = Bundle::around(&dir.path().join("daisy")).expect("a package");
        let mut packed = bundle.pack(dir.path()).expect("packed");
        let mut bytes = Vec::new();
        loop {
            let piece = packed.read().expect("read");
            if piece.is_empty() {
                break;
            }
            bytes.extend(piece);
        }
        assert_eq!(bytes.len() as u64, packed.bytes);
        assert_eq!(HEXLOWER.encode(digest::digest(&SHA256, &bytes).as_ref()), packed.sha256);
        let out = dir.path().join("out");
        tar::Archive::new(&bytes[..]).unpack(&out).expect("unpacked");
        assert_eq!(fs::read(out.join("mlx/lib/libmlx.so")).expect("there").len(), 3 * PIECE_BYTES);
        let mode = fs::metadata(out.join("daisy")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert!(!out.join("nvidia").exists());
    }

    #[test]
    fn what_is_no_package_or_for_another_system_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("daisy"), "").expect("written");
        let said = message(Bundle::around(&dir.path().join("daisy")).expect_err("built here"));
        assert!(said.contains("without --install"), "{said}");
        Bundle::check("mini", &own_system()).expect("the same");
        let said = message(Bundle::check("mini", "Plan9 mips").expect_err("another"));
        assert!(said.contains("mini is Plan9 mips") && said.contains(&own_system()), "{said}");
    }
}
