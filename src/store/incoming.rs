//! One file that is being received, from wherever its bytes come.
//!
//! They go into `blobs/HASH.incomplete` under that blob's lock. What is there when a source breaks off, the
//! disk fills up or the process ends stays, and the next try goes on from it. Only a file whose hash is right
//! gets its name, at once.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::cache::{CacheError, make_dir};
use super::content::Hasher;
use super::revision::RemoteFile;

/// A file that is being received. Dropped before its end, it stays as it is, for the next try.
#[derive(Debug)]
pub struct Incoming {
    file: RemoteFile,
    places: Places,
    out: File,
    have: u64,
    hasher: Hasher,
    /// Held until this is dropped.
    _lock: File,
}

/// Where a file of a commit lies.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) blob: PathBuf,
    pub(super) partial: PathBuf,
    /// In the snapshot.
    pub(super) link: PathBuf,
}

impl Incoming {
    pub(super) fn open(
        file: RemoteFile,
        places: Places,
        lock: File,
        checked: &mut dyn FnMut(u64),
    ) -> Result<Self, CacheError> {
        let path = &places.partial;
        make_dir(path.parent().unwrap_or(path))?;
        let failed = |source| CacheError::Write { path: path.clone(), source };
        let opened = File::options().create(true).truncate(false).read(true).write(true).open(path);
        let mut out = opened.map_err(failed)?;
        let mut have = out.metadata().map_err(failed)?.len();
        if have > file.bytes {
            out.set_len(0).map_err(failed)?;
            have = 0;
        }
        let mut hasher = file.content.hasher(file.bytes);
        // Its end is where writing goes on.
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut read = 0;
        while read < have {
            let count = out.read(&mut buffer).map_err(failed)?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            read += count as u64;
            checked(read);
        }
        Ok(Self { file, places, out, have: read, hasher, _lock: lock })
    }

    /// Bytes that are here: where a source goes on.
    pub const fn have(&self) -> u64 {
        self.have
    }

    /// Bytes that the file has in all.
    pub const fn bytes(&self) -> u64 {
        self.file.bytes
    }

    /// Takes the bytes that follow.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CacheError> {
        if self.have + bytes.len() as u64 > self.file.bytes {
            // Whatever this is, it is not that file.
            self.restart()?;
            return Err(self.long());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(count) => {
                    self.hasher.update(&rest[..count]);
                    self.have += count as u64;
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) => {
                    return Err(CacheError::DiskFull {
                        file: self.file.path.clone(),
                        dir: self.places.partial.parent().unwrap_or(Path::new("")).to_owned(),
                        kept: self.have,
                    });
                }
                Err(source) => {
                    return Err(CacheError::Write { path: self.places.partial.clone(), source });
                }
            }
        }
        Ok(())
    }

    /// Forgets what is here, for a source that cannot start in the middle.
    pub fn restart(&mut self) -> Result<(), CacheError> {
        use std::io::Seek;
        let emptied = self.out.set_len(0).and_then(|()| self.out.rewind());
        emptied
            .map_err(|source| CacheError::Write { path: self.places.partial.clone(), source })?;
        self.have = 0;
        self.hasher = self.file.content.hasher(self.file.bytes);
        Ok(())
    }

    /// Checks the hash and gives the file its name; its place in the snapshot. Wrong bytes are removed.
    pub fn finish(self) -> Result<PathBuf, CacheError> {
        let Self { file, places, out, have, hasher, _lock } = self;
        if have < file.bytes {
            return Err(CacheError::Short { file: file.path, expected: file.bytes, got: have });
        }
        let got = hasher.finish();
        if got != file.content {
            let _ = fs::remove_file(&places.partial);
            return Err(CacheError::Damaged { file: file.path, expected: file.content, got });
        }
        let failed = |source| CacheError::Write { path: places.partial.clone(), source };
        out.sync_all().map_err(failed)?;
        fs::rename(&places.partial, &places.blob).map_err(failed)?;
        places.link()?;
        Ok(places.link)
    }

    fn long(&self) -> CacheError {
        CacheError::Long { file: self.file.path.clone(), expected: self.file.bytes }
    }
}

impl Places {
    /// Puts the blob into the snapshot, by a relative link, so that a cache may be moved.
    pub(super) fn link(&self) -> Result<(), CacheError> {
        let failed = |source| CacheError::Write { path: self.link.clone(), source };
        let repo = self.blob.parent().and_then(Path::parent).unwrap_or(Path::new(""));
        let inside = self.link.strip_prefix(repo).unwrap_or(&self.link);
        let mut target: PathBuf = inside.components().skip(1).map(|_| "..").collect();
        target.push("blobs");
        target.push(self.blob.file_name().unwrap_or_default());
        if fs::read_link(&self.link).is_ok_and(|old| old == target) {
            return Ok(());
        }
        let dir = self.link.parent().unwrap_or(repo);
        make_dir(dir)?;
        // Made beside it and renamed: another process never finds it gone.
        let name = self.link.file_name().unwrap_or_default().to_string_lossy();
        let fresh = dir.join(format!(".{name}.{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        symlink(&target, &fresh).map_err(failed)?;
        fs::rename(&fresh, &self.link).map_err(failed)
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

const BUFFER_BYTES: usize = 1 << 20;
