//! The Hugging Face cache, laid out as `huggingface_hub` does and shared with other tools: what is in it, and
//! where a new file goes.
//!
//! `models--ORG--NAME/` holds `blobs/HASH` (the bytes), `snapshots/COMMIT/PATH` (links to them) and `refs/NAME`
//! (a commit's id); `.locks/models--ORG--NAME/HASH.lock` is held by whoever fetches that blob
//! (<https://huggingface.co/docs/huggingface_hub/guides/manage-cache>).

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::content::Content;
use super::incoming::{Incoming, Places};
use super::revision::{RemoteFile, Revision, is_inside, total};
use super::source::{RepoId, is_commit};
use crate::units::Bytes;

/// A cache in one directory, which need not exist yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    dir: PathBuf,
}

/// A commit of a model as far as it is in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub repo: RepoId,
    pub commit: String,
    /// Branches and tags that led to it when they were last asked for.
    pub refs: Vec<String>,
    pub dir: PathBuf,
}

/// A file that is to come into the cache.
#[derive(Debug)]
pub enum Begun {
    /// It is here already.
    There(PathBuf),
    Incoming(Box<Incoming>),
}

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{file} is being fetched by another process: wait for it, or end that one")]
    Busy { file: String },
    #[error(
        "{} has {} free, and {} are still to come: make room, or set HF_HUB_CACHE to another disk",
        dir.display(), Bytes(*free), Bytes(*needs)
    )]
    NoSpace { dir: PathBuf, needs: u64, free: u64 },
    #[error(
        "the disk of {} is full; {} of {file} are kept: make room and give the same command again, it goes on from there",
        dir.display(), Bytes(*kept)
    )]
    DiskFull { file: String, dir: PathBuf, kept: u64 },
    #[error(
        "{file} came with other bytes than the hub states ({got} instead of {expected}); they are removed: try again"
    )]
    Damaged { file: String, expected: Content, got: Content },
    #[error("{path:?} leads out of a repository: nothing is written there")]
    Path { path: String },
    #[error("{file} came with {got} bytes of {expected}: try again, it goes on from there")]
    Short { file: String, expected: u64, got: u64 },
    #[error("{file} came with more than its {expected} bytes; they are removed: try again")]
    Long { file: String, expected: u64 },
}

impl Cache {
    pub const fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is here of a branch, tag or commit as it was when last asked for.
    pub fn find(&self, repo: &RepoId, revision: &str) -> Result<Option<Snapshot>, CacheError> {
        let known = self.snapshots(repo)?;
        let commit = if is_commit(revision) {
            revision.to_owned()
        } else {
            let path = self.repo_dir(repo).join("refs").join(revision);
            match fs::read_to_string(&path) {
                Ok(text) => text.trim().to_owned(),
                Err(error) if is_absent(&error) => return Ok(None),
                Err(source) => return Err(CacheError::Read { path, source }),
            }
        };
        Ok(known.into_iter().find(|snapshot| snapshot.commit == commit))
    }

    /// Every commit of every model that something is here of, in order of their names.
    pub fn list(&self) -> Result<Vec<Snapshot>, CacheError> {
        let mut all = Vec::new();
        for entry in entries(&self.dir)? {
            let name = entry.file_name();
            let Some(repo) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
                continue;
            };
            if let Ok(repo) = RepoId::parse(&repo.replacen("--", "/", 1)) {
                all.extend(self.snapshots(&repo)?);
            }
        }
        all.sort_by(|a, b| (&a.repo, &a.commit).cmp(&(&b.repo, &b.commit)));
        Ok(all)
    }

    /// Whether the disk holds what is still to come of `files`.
    pub fn room(&self, revision: &Revision, files: &[&RemoteFile]) -> Result<(), CacheError> {
        let missing =
            files.iter().copied().filter(|file| !self.blob(&revision.repo, file).exists());
        let mut partial = 0_u64;
        let missing: Vec<&RemoteFile> = missing.collect();
        for file in &missing {
            let path = self.places(revision, file).partial;
            partial += fs::metadata(path).map_or(0, |metadata| metadata.len().min(file.bytes));
        }
        let needs = total(missing).saturating_sub(partial);
        let standing = self.dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
        let Ok(disk) = rustix::fs::statvfs(standing) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if needs > 0 && needs.saturating_add(SPARE_BYTES) > free {
            return Err(CacheError::NoSpace { dir: self.dir.clone(), needs, free });
        }
        Ok(())
    }

    /// Prepares for the bytes of `file`: takes its lock, and hashes what an earlier try left, telling
    /// `checked` how many bytes of it so far.
    pub fn begin(
        &self,
        revision: &Revision,
        file: &RemoteFile,
        checked: &mut dyn FnMut(u64),
    ) -> Result<Begun, CacheError> {
        if !is_inside(&file.path) {
            return Err(CacheError::Path { path: file.path.clone() });
        }
        let places = self.places(revision, file);
        if is_there(&places, file) {
            places.link()?;
            return Ok(Begun::There(places.link));
        }
        let lock = self.lock(revision, file)?;
        // Another process may have brought it meanwhile.
        if is_there(&places, file) {
            places.link()?;
            return Ok(Begun::There(places.link));
        }
        Incoming::open(file.clone(), places, lock, checked).map(Box::new).map(Begun::Incoming)
    }

    /// Notes to which commit the branch or tag that was asked for leads.
    pub fn refer(&self, revision: &Revision) -> Result<(), CacheError> {
        if is_commit(&revision.asked) {
            return Ok(());
        }
        let path = self.repo_dir(&revision.repo).join("refs").join(&revision.asked);
        if fs::read_to_string(&path).is_ok_and(|text| text == revision.commit) {
            return Ok(());
        }
        make_dir(path.parent().unwrap_or(&self.dir))?;
        fs::write(&path, &revision.commit).map_err(|source| CacheError::Write { path, source })
    }

    /// Removes a snapshot, its refs, and each blob that no other snapshot links to; the bytes that this freed.
    pub fn remove(&self, snapshot: &Snapshot) -> Result<u64, CacheError> {
        let repo = self.repo_dir(&snapshot.repo);
        let unwritable = |path: &Path, source| CacheError::Write { path: path.to_owned(), source };
        for name in &snapshot.refs {
            let path = repo.join("refs").join(name);
            fs::remove_file(&path).map_err(|source| unwritable(&path, source))?;
        }
        fs::remove_dir_all(&snapshot.dir).map_err(|source| unwritable(&snapshot.dir, source))?;
        let others = self.snapshots(&snapshot.repo)?;
        let used: Vec<String> =
            others.iter().flat_map(Snapshot::files).map(|file| file.content.to_string()).collect();
        let mut freed = 0;
        for entry in entries(&repo.join("blobs"))? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let hash = name.trim_end_matches(PARTIAL);
            if Content::parse(hash).is_none() || used.iter().any(|used| used == hash) {
                continue;
            }
            freed += entry.metadata().map_or(0, |metadata| metadata.len());
            fs::remove_file(entry.path()).map_err(|source| unwritable(&entry.path(), source))?;
        }
        if others.is_empty() {
            fs::remove_dir_all(&repo).map_err(|source| unwritable(&repo, source))?;
        }
        Ok(freed)
    }

    fn snapshots(&self, repo: &RepoId) -> Result<Vec<Snapshot>, CacheError> {
        let dir = self.repo_dir(repo);
        let mut refs = Vec::new();
        named_refs(&dir.join("refs"), "", 0, &mut refs)?;
        let mut found = Vec::new();
        for entry in entries(&dir.join("snapshots"))? {
            let commit = entry.file_name().to_string_lossy().into_owned();
            if is_commit(&commit) && entry.path().is_dir() {
                let leads = refs.iter().filter(|(_, to)| *to == commit);
                let mut refs: Vec<String> = leads.map(|(name, _)| name.clone()).collect();
                refs.sort();
                found.push(Snapshot { repo: repo.clone(), commit, refs, dir: entry.path() });
            }
        }
        Ok(found)
    }

    fn repo_dir(&self, repo: &RepoId) -> PathBuf {
        self.dir.join(folder(repo))
    }

    fn blob(&self, repo: &RepoId, file: &RemoteFile) -> PathBuf {
        self.repo_dir(repo).join("blobs").join(file.content.to_string())
    }

    fn places(&self, revision: &Revision, file: &RemoteFile) -> Places {
        let blob = self.blob(&revision.repo, file);
        let mut partial = blob.clone().into_os_string();
        partial.push(PARTIAL);
        let snapshot = self.repo_dir(&revision.repo).join("snapshots").join(&revision.commit);
        Places { blob, partial: partial.into(), link: snapshot.join(&file.path) }
    }

    /// The lock that `huggingface_hub` takes. Waits for another process, but not for ever.
    fn lock(&self, revision: &Revision, file: &RemoteFile) -> Result<File, CacheError> {
        let dir = self.dir.join(".locks").join(folder(&revision.repo));
        make_dir(&dir)?;
        let path = dir.join(format!("{}.lock", file.content));
        let unwritable = |source| CacheError::Write { path: path.clone(), source };
        let since = Instant::now();
        loop {
            let lock = File::options().create(true).append(true).open(&path).map_err(unwritable)?;
            match lock.try_lock() {
                // `huggingface_hub` may have removed the file between the two: then it is nobody's lock.
                Ok(()) if is_same_file(&lock, &path) => return Ok(lock),
                Ok(()) => {}
                Err(TryLockError::Error(source)) => return Err(unwritable(source)),
                Err(TryLockError::WouldBlock) if since.elapsed() > LOCK_MAX => {
                    return Err(CacheError::Busy { file: file.path.clone() });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL),
            }
        }
    }
}

impl Snapshot {
    /// The files that are here whole, by the hashes that their blobs are named by.
    pub fn files(&self) -> Vec<RemoteFile> {
        let mut files = Vec::new();
        linked_files(&self.dir, "", 0, &mut files);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files
    }
}

fn is_there(places: &Places, file: &RemoteFile) -> bool {
    fs::metadata(&places.blob)
        .is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.bytes)
}

fn linked_files(dir: &Path, under: &str, depth: usize, files: &mut Vec<RemoteFile>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = format!("{under}{}", entry.file_name().to_string_lossy());
        let target = fs::read_link(entry.path()).ok();
        let blob = target.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        match (blob.and_then(Content::parse), fs::metadata(entry.path())) {
            (Some(content), Ok(metadata)) if metadata.is_file() => {
                files.push(RemoteFile { path, bytes: metadata.len(), content });
            }
            (_, Ok(metadata)) if metadata.is_dir() && depth < DEPTH_MAX => {
                linked_files(&entry.path(), &format!("{path}/"), depth + 1, files);
            }
            _ => {}
        }
    }
}

/// Branches and tags with the commits that they lead to; their names may have slashes.
fn named_refs(
    dir: &Path,
    under: &str,
    depth: usize,
    refs: &mut Vec<(String, String)>,
) -> Result<(), CacheError> {
    for entry in entries(dir)? {
        let name = format!("{under}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() && depth < DEPTH_MAX {
            named_refs(&entry.path(), &format!("{name}/"), depth + 1, refs)?;
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            refs.push((name, text.trim().to_owned()));
        }
    }
    Ok(())
}

/// What a directory holds; nothing where there is none.
fn entries(dir: &Path) -> Result<Vec<fs::DirEntry>, CacheError> {
    let read = fs::read_dir(dir).and_then(Iterator::collect);
    match read {
        Ok(entries) => Ok(entries),
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        Err(source) => Err(CacheError::Read { path: dir.to_owned(), source }),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

pub(super) fn make_dir(dir: &Path) -> Result<(), CacheError> {
    fs::create_dir_all(dir).map_err(|source| CacheError::Write { path: dir.to_owned(), source })
}

fn is_same_file(open: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let here = fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    let held = open.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    matches!((here, held), (Ok(here), Ok(held)) if here == held)
}

fn folder(repo: &RepoId) -> String {
    format!("{PREFIX}{}", repo.as_str().replace('/', "--"))
}

const PREFIX: &str = "models--";
const PARTIAL: &str = ".incomplete";
/// A disk that is full to the last byte stops more than Daisy.
const SPARE_BYTES: u64 = 256 << 20;
const LOCK_MAX: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(50);
const DEPTH_MAX: usize = 8;

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
