//! Who this node is and whom it trusts: two private files in its home directory.
//!
//! `key` holds the Ed25519 key (PKCS#8); its public half is the [`NodeId`]. It is made once and never
//! replaced unasked: a damaged or readable-by-others key is an error, since a silent new key would turn
//! the node into a stranger for all its peers. `peers.toml` lists the trusted nodes ([`peers`]).
//!
//! This module knows no socket and no clock. Start at [`Identity::load_or_create`], then
//! [`Peers`] and [`trust_check`].

mod peers;

use std::fmt;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use daisy_proto::NodeId;
use tempfile::NamedTempFile;

pub use self::peers::{Peer, PeerList, Peers, trust_check};

/// The node's own key.
pub struct Identity {
    pkcs8: Vec<u8>,
    id: NodeId,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot {what} {path}: {source}")]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} is open to other users (mode {mode:o}); run `chmod 600 {path}`", path = .path.display())]
    TooOpen { path: PathBuf, mode: u32 },
    #[error("{path} is not a regular file of at most {limit} bytes", path = .path.display())]
    NotAFile { path: PathBuf, limit: u64 },
    #[error(
        "{path} is not an Ed25519 key in PKCS#8; restore it from a backup, or delete it to become a new node that every peer has to trust again",
        path = .path.display()
    )]
    DamagedKey { path: PathBuf },
    #[error("{path} cannot be read: {reason}; correct or delete that entry", path = .path.display())]
    DamagedPeers { path: PathBuf, reason: String },
    #[error("{path} would hold more than {limit} peers", path = .path.display())]
    TooManyPeers { path: PathBuf, limit: usize },
    #[error("the system's random source failed")]
    Random,
}

impl Identity {
    /// Reads `<home>/key`, or makes home (mode 0700) and key (mode 0600) where there is none.
    pub fn load_or_create(home: &Path) -> Result<Self, IdentityError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(home)
            .map_err(|source| io_error("create", home, source))?;
        let path = home.join(KEY_FILE);
        if let Some(pkcs8) = read_private(&path, KEY_BYTES_MAX)? {
            return Self::from_pkcs8(pkcs8, &path);
        }
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| IdentityError::Random)?;
        if write_new(home, &path, document.as_ref())? {
            return Self::from_pkcs8(document.as_ref().to_vec(), &path);
        }
        // Another process was faster: its key counts.
        let pkcs8 = read_private(&path, KEY_BYTES_MAX)?
            .ok_or_else(|| io_error("read", &path, io::Error::from(io::ErrorKind::NotFound)))?;
        Self::from_pkcs8(pkcs8, &path)
    }

    pub fn node_id(&self) -> NodeId {
        self.id
    }

    /// Makes `home` the home of a new node: another key, and nobody is trusted. For a home that was
    /// copied, where a second machine would be taken for the first one.
    pub fn reset(home: &Path) -> Result<Self, IdentityError> {
        for name in [peers::FILE, KEY_FILE] {
            let path = home.join(name);
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_error("remove", &path, error)),
            }
        }
        Self::load_or_create(home)
    }

    /// The private key, for the TLS endpoint of this node.
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    fn from_pkcs8(pkcs8: Vec<u8>, path: &Path) -> Result<Self, IdentityError> {
        let damaged = || IdentityError::DamagedKey { path: path.to_owned() };
        let pair = Ed25519KeyPair::from_pkcs8(&pkcs8).map_err(|_| damaged())?;
        let public = pair.public_key().as_ref().try_into().map_err(|_| damaged())?;
        Ok(Self { pkcs8, id: NodeId(public) })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the private key: this may end up in a log.
        f.debug_struct("Identity").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The whole of a file that only its owner can open; none where there is no such file.
fn read_private(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, IdentityError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("open", path, error)),
    };
    let meta = file.metadata().map_err(|error| io_error("read", path, error))?;
    if !meta.is_file() || meta.len() > limit {
        return Err(IdentityError::NotAFile { path: path.to_owned(), limit });
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(IdentityError::TooOpen { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(|error| io_error("read", path, error))?;
    Ok(Some(bytes))
}

/// Writes `path` unless it exists; false when it does. Never leaves half a file under that name.
fn write_new(home: &Path, path: &Path, bytes: &[u8]) -> Result<bool, IdentityError> {
    match write_beside(home, bytes)?.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(io_error("create", path, error.error)),
    }
}

fn write_beside(home: &Path, bytes: &[u8]) -> Result<NamedTempFile, IdentityError> {
    let write = || -> io::Result<NamedTempFile> {
        let mut file = NamedTempFile::new_in(home)?;
        file.as_file().set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        Ok(file)
    };
    write().map_err(|error| io_error("write into", home, error))
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> IdentityError {
    IdentityError::Io { what, path: path.to_owned(), source }
}

const KEY_FILE: &str = "key";
/// An Ed25519 key in PKCS#8 takes 48 to 85 bytes.
const KEY_BYTES_MAX: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn home() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    pub(super) fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    pub(super) fn write_private(path: &Path, bytes: &[u8]) {
        fs::write(path, bytes).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }

    #[test]
    fn a_key_is_made_once_and_private() {
        let dir = home();
        let home = dir.path().join("deep/home");
        let first = Identity::load_or_create(&home).unwrap();
        let second = Identity::load_or_create(&home).unwrap();
        assert_eq!(first.node_id(), second.node_id());
        assert_eq!(first.pkcs8(), second.pkcs8());
        assert_eq!((mode(&home), mode(&home.join("key"))), (0o700, 0o600));
        let other = Identity::load_or_create(&dir.path().join("other")).unwrap();
        assert_ne!(first.node_id(), other.node_id());
        assert!(!format!("{first:?}").contains("pkcs8"));
    }

    #[test]
    fn a_reset_home_is_a_new_node_that_trusts_nobody() {
        let dir = home();
        let old = Identity::load_or_create(dir.path()).unwrap().node_id();
        Peers::load(dir.path()).unwrap().trust(NodeId([1; 32]), None, 1).unwrap();
        let new = Identity::reset(dir.path()).unwrap().node_id();
        assert_ne!(old, new);
        assert_eq!(Identity::load_or_create(dir.path()).unwrap().node_id(), new);
        assert!(Peers::load(dir.path()).unwrap().list().is_empty());
        Identity::reset(&dir.path().join("none")).unwrap();
    }

    #[test]
    fn nodes_that_start_together_agree_on_the_key() {
        let dir = home();
        let ids: Vec<NodeId> = std::thread::scope(|scope| {
            let start = || Identity::load_or_create(dir.path()).unwrap().node_id();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }

    #[test]
    fn an_open_key_is_refused_with_the_remedy() {
        let dir = home();
        Identity::load_or_create(dir.path()).unwrap();
        let path = dir.path().join("key");
        for open in [0o644, 0o640, 0o604] {
            fs::set_permissions(&path, Permissions::from_mode(open)).unwrap();
            let text = Identity::load_or_create(dir.path()).unwrap_err().to_string();
            assert!(text.contains(&format!("chmod 600 {}", path.display())), "{text}");
        }
    }

    #[test]
    fn a_damaged_key_is_named_and_kept() {
        let good = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let cut = &good.as_ref()[..40];
        for bytes in [&b""[..], b"not a key", cut, &[0; 5000]] {
            let dir = home();
            let path = dir.path().join("key");
            write_private(&path, bytes);
            let text = Identity::load_or_create(dir.path()).unwrap_err().to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert_eq!(fs::read(&path).unwrap(), bytes, "must not be replaced");
        }
    }
}
