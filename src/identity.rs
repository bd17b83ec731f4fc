//! Who this node is and whom it trusts: two private files in its home directory.
//!
//! `key` holds the Ed25519 key (PKCS#8); its public half is the [`NodeId`]. It is made once and never
//! replaced: a damaged or readable-by-others key is an error, since a silent new key would turn the
//! node into a stranger for all its peers. `peers.toml` lists the trusted nodes. Every change is
//! written beside it and renamed over it, so a reader sees the old list or the new one.
//!
//! This module knows no socket and no clock. Start at [`Identity::load_or_create`], then
//! [`Peers`] and [`trust_check`].

use std::fmt;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use daisy_proto::NodeId;
use serde::Deserialize;
use tempfile::NamedTempFile;

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
    #[error("{path} would hold more than {PEERS_MAX} peers", path = .path.display())]
    TooManyPeers { path: PathBuf },
    #[error(
        "peer name {name:?} is not usable: at most {NAME_CHARS_MAX} characters without control characters"
    )]
    BadName { name: String },
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

/// One trusted node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub id: NodeId,
    pub name: Option<String>,
    pub added_at_unix_s: u64,
}

/// The trusted nodes, as `<home>/peers.toml` lists them.
#[derive(Debug)]
pub struct Peers {
    home: PathBuf,
    list: Vec<Peer>,
}

impl Peers {
    /// No file is an empty list; a damaged or readable-by-others file is an error.
    pub fn load(home: &Path) -> Result<Self, IdentityError> {
        let path = home.join(PEERS_FILE);
        let list = match read_private(&path, PEERS_BYTES_MAX)? {
            Some(bytes) => parse_peers(&bytes, &path)?,
            None => Vec::new(),
        };
        Ok(Self { home: home.to_owned(), list })
    }

    pub fn contains(&self, id: &NodeId) -> bool {
        self.list.iter().any(|peer| peer.id == *id)
    }

    /// In the order in which they were added.
    pub fn list(&self) -> &[Peer] {
        &self.list
    }

    /// Adds `id` to the file; false when it was there (a given name then replaces the old one).
    /// Processes that add at the same time wait for each other, so none loses its entry.
    pub fn trust(
        &mut self,
        id: NodeId,
        name: Option<&str>,
        added_at_unix_s: u64,
    ) -> Result<bool, IdentityError> {
        if let Some(name) = name.filter(|name| !is_usable_name(name)) {
            return Err(IdentityError::BadName { name: name.to_owned() });
        }
        let home = File::open(&self.home).map_err(|e| io_error("open", &self.home, e))?;
        home.lock().map_err(|e| io_error("lock", &self.home, e))?;
        let mut list = Self::load(&self.home)?.list;
        let path = self.home.join(PEERS_FILE);
        let position = list.iter().position(|peer| peer.id == id);
        match position {
            Some(position) => {
                let known = &mut list[position];
                known.name = name.map(str::to_owned).or(known.name.take());
            }
            None if list.len() >= PEERS_MAX => return Err(IdentityError::TooManyPeers { path }),
            None => list.push(Peer { id, name: name.map(str::to_owned), added_at_unix_s }),
        }
        let file = write_beside(&self.home, render_peers(&list).as_bytes())?;
        file.persist(&path).map_err(|e| io_error("replace", &path, e.error))?;
        self.list = list;
        Ok(position.is_none())
    }
}

/// Whether a node is trusted, by the file as it is now: a running node sees a new peer at once.
///
/// The file is read again only when it changed. While it cannot be read nobody is trusted, and a
/// warning says why.
pub fn trust_check(home: &Path) -> impl Fn(&NodeId) -> bool + Send + Sync + 'static {
    let home = home.to_owned();
    let cache = Mutex::new((None, Vec::new()));
    move |id| {
        let stamp = Stamp::of(&home.join(PEERS_FILE));
        // A poisoned lock means that another check panicked half-way: read again.
        let mut cache = cache.lock().unwrap_or_else(|poisoned| {
            let mut cache = poisoned.into_inner();
            cache.0 = None;
            cache
        });
        if cache.0 != Some(stamp) {
            let ids = match Peers::load(&home) {
                Ok(peers) => peers.list.iter().map(|peer| peer.id).collect(),
                Err(error) => {
                    tracing::warn!(%error, "no peer is trusted until the list can be read");
                    Vec::new()
                }
            };
            *cache = (Some(stamp), ids);
        }
        cache.1.contains(id)
    }
}

/// What tells one version of a file from the next. Each version is a new inode (see [`Peers::trust`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(Option<(u64, u64, i64, i64, u32)>);

impl Stamp {
    fn of(path: &Path) -> Self {
        Self(
            fs::metadata(path)
                .ok()
                .map(|meta| (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec(), meta.mode())),
        )
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeersFile {
    #[serde(default)]
    peer: Vec<PeerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerEntry {
    id: String,
    name: Option<String>,
    added_at: u64,
}

fn parse_peers(bytes: &[u8], path: &Path) -> Result<Vec<Peer>, IdentityError> {
    let damaged = |reason: String| IdentityError::DamagedPeers { path: path.to_owned(), reason };
    let text = std::str::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
    let file: PeersFile =
        toml::from_str(text).map_err(|error| damaged(error.to_string().trim().to_owned()))?;
    if file.peer.len() > PEERS_MAX {
        return Err(IdentityError::TooManyPeers { path: path.to_owned() });
    }
    let parse = |entry: PeerEntry| {
        let id = entry
            .id
            .parse()
            .map_err(|error: daisy_proto::id::NodeIdError| damaged(error.to_string()))?;
        if let Some(name) = entry.name.as_deref().filter(|name| !is_usable_name(name)) {
            return Err(damaged(format!(
                "the name {name:?} is too long or has control characters"
            )));
        }
        Ok(Peer { id, name: entry.name, added_at_unix_s: entry.added_at })
    };
    file.peer.into_iter().map(parse).collect()
}

fn render_peers(list: &[Peer]) -> String {
    let mut text =
        String::from("# Nodes that this one trusts. Written by `daisy cluster trust`.\n");
    for peer in list {
        text.push_str(&format_peer(peer));
    }
    text
}

fn format_peer(peer: &Peer) -> String {
    // Names have no control characters, so these two are all that a TOML string must escape.
    let name = peer.name.as_ref().map_or_else(String::new, |name| {
        format!("name = \"{}\"\n", name.replace('\\', "\\\\").replace('"', "\\\""))
    });
    format!("\n[[peer]]\nid = \"{}\"\n{name}added_at = {}\n", peer.id, peer.added_at_unix_s)
}

fn is_usable_name(name: &str) -> bool {
    name.chars().count() <= NAME_CHARS_MAX && !name.chars().any(char::is_control)
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
const PEERS_FILE: &str = "peers.toml";
/// An Ed25519 key in PKCS#8 takes 48 to 85 bytes.
const KEY_BYTES_MAX: u64 = 1024;
/// Room for [`PEERS_MAX`] entries of about 400 bytes.
const PEERS_BYTES_MAX: u64 = 512 * 1024;
const PEERS_MAX: usize = 1024;
const NAME_CHARS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn write_private(path: &Path, bytes: &[u8]) {
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

    #[test]
    fn peers_survive_the_file() {
        let dir = home();
        let mut peers = Peers::load(dir.path()).unwrap();
        let (a, b) = (NodeId([1; 32]), NodeId([2; 32]));
        let name = r#"Anna's "mini" \ Küche = [x] #1"#;
        assert!(peers.trust(a, Some(name), 1_700_000_000).unwrap());
        assert!(peers.trust(b, None, 7).unwrap());
        assert!(!peers.trust(b, None, 8).unwrap(), "known already");
        assert!(!peers.trust(b, Some("beta"), 9).unwrap());
        assert_eq!(mode(&dir.path().join("peers.toml")), 0o600);

        let read = Peers::load(dir.path()).unwrap();
        let entry = |id, name: &str, added_at_unix_s| Peer {
            id,
            name: Some(name.to_owned()),
            added_at_unix_s,
        };
        let want = [entry(a, name, 1_700_000_000), entry(b, "beta", 7)];
        assert_eq!(read.list(), want);
        assert!(read.contains(&a) && !read.contains(&NodeId([3; 32])));
    }

    #[test]
    fn writers_at_the_same_time_lose_nothing() {
        let dir = home();
        std::thread::scope(|scope| {
            for n in 0..8 {
                let home = dir.path();
                scope.spawn(move || {
                    Peers::load(home).unwrap().trust(NodeId([n; 32]), None, 1).unwrap();
                });
            }
        });
        assert_eq!(Peers::load(dir.path()).unwrap().list().len(), 8);
    }

    #[test]
    fn a_damaged_list_is_named() {
        let id = NodeId([1; 32]);
        let cases = [
            ("[[peer]]\nid = \"abc\"\nadded_at = 1\n".to_owned(), "`abc`"),
            ("[[peer]]\nadded_at = 1\n".to_owned(), "id"),
            (format!("[[peer]]\nid = \"{id}\"\nadded_at = 1\ncolour = 1\n"), "colour"),
            (format!("[[peer]]\nid = \"{id}\"\nadded_at = -1\n"), "added_at"),
            (format!("[[peer]]\nid = \"{id}\"\nname = \"a\\u0007\"\nadded_at = 1\n"), "control"),
            ("[[peer".to_owned(), "peers.toml"),
            ("peer = 3".to_owned(), "peer"),
        ];
        for (text, named) in cases {
            let dir = home();
            write_private(&dir.path().join("peers.toml"), text.as_bytes());
            let error = Peers::load(dir.path()).unwrap_err().to_string();
            assert!(error.contains("peers.toml") && error.contains(named), "{text}: {error}");
            let mut peers = Peers { home: dir.path().to_owned(), list: Vec::new() };
            assert!(peers.trust(id, None, 1).is_err(), "a damaged list is not overwritten");
        }
    }

    #[test]
    fn bad_names_are_refused() {
        let dir = home();
        let mut peers = Peers::load(dir.path()).unwrap();
        for name in ["a\nb", "\u{7f}", &"x".repeat(65)] {
            assert!(peers.trust(NodeId([1; 32]), Some(name), 1).is_err(), "{name:?}");
        }
        assert_eq!(Peers::load(dir.path()).unwrap().list().len(), 0);
    }

    #[test]
    fn a_running_check_sees_changes_and_fails_closed() {
        let dir = home();
        let id = NodeId([9; 32]);
        let trusted = trust_check(dir.path());
        assert!(!trusted(&id));
        Peers::load(dir.path()).unwrap().trust(id, None, 1).unwrap();
        assert!(trusted(&id) && !trusted(&NodeId([8; 32])));
        let path = dir.path().join("peers.toml");
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(!trusted(&id), "others could have written it");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(trusted(&id));
        fs::remove_file(&path).unwrap();
        assert!(!trusted(&id));
    }
}
