//! The trusted nodes: `<home>/peers.toml`. Every change is written beside it and renamed over it, so a
//! reader sees the old list or the new one. Start at [`Peers::load`]; a running node asks
//! [`trust_check`].

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use daisy_proto::{NodeId, NodeName};
use serde::Deserialize;

use super::{IdentityError, io_error, read_private, write_beside};

/// One trusted node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub id: NodeId,
    pub name: Option<NodeName>,
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
        let path = home.join(FILE);
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
        name: Option<&NodeName>,
        added_at_unix_s: u64,
    ) -> Result<bool, IdentityError> {
        let path = self.home.join(FILE);
        self.change(|list| {
            let position = list.iter().position(|peer| peer.id == id);
            match position {
                Some(position) => {
                    let known = &mut list[position];
                    known.name = name.cloned().or(known.name.take());
                }
                None if list.len() >= PEERS_MAX => {
                    return Err(IdentityError::TooManyPeers { path, limit: PEERS_MAX });
                }
                None => list.push(Peer { id, name: name.cloned(), added_at_unix_s }),
            }
            Ok(position.is_none())
        })
    }

    /// Takes `id` out of the file; false when it was not there.
    pub fn untrust(&mut self, id: &NodeId) -> Result<bool, IdentityError> {
        self.change(|list| {
            let before = list.len();
            list.retain(|peer| peer.id != *id);
            Ok(list.len() < before)
        })
    }

    /// Those that a person may mean by `text`: a name, an id, or the beginning of an id.
    pub fn matching(&self, text: &str) -> Vec<&Peer> {
        let named = |peer: &&Peer| peer.name.as_ref().is_some_and(|name| name.as_str() == text);
        let by_name: Vec<_> = self.list.iter().filter(named).collect();
        if !by_name.is_empty() || text.len() < ID_LETTERS_MIN {
            return by_name;
        }
        let begins = |peer: &&Peer| peer.id.to_string().starts_with(&text.to_ascii_lowercase());
        self.list.iter().filter(begins).collect()
    }

    fn change(
        &mut self,
        change: impl FnOnce(&mut Vec<Peer>) -> Result<bool, IdentityError>,
    ) -> Result<bool, IdentityError> {
        let home = File::open(&self.home).map_err(|e| io_error("open", &self.home, e))?;
        home.lock().map_err(|e| io_error("lock", &self.home, e))?;
        let mut list = Self::load(&self.home)?.list;
        let changed = change(&mut list)?;
        let path = self.home.join(FILE);
        let file = write_beside(&self.home, render_peers(&list).as_bytes())?;
        file.persist(&path).map_err(|e| io_error("replace", &path, e.error))?;
        self.list = list;
        Ok(changed)
    }
}

/// Whether a node is trusted, by the file as it is now: a running node sees a new peer at once.
///
/// The file is read again only when it changed. While it cannot be read nobody is trusted, and a
/// warning says why.
pub fn trust_check(home: &Path) -> impl Fn(&NodeId) -> bool + Send + Sync + 'static {
    let list = Mutex::new(PeerList::new(home));
    move |id| {
        // A poisoned lock means that another check panicked half-way: read again.
        let mut list = list.lock().unwrap_or_else(|poisoned| {
            let mut list = poisoned.into_inner();
            list.stamp = None;
            list
        });
        list.refresh();
        list.now().iter().any(|peer| peer.id == *id)
    }
}

/// The trusted nodes as the file has them now; empty while it cannot be read.
#[derive(Debug)]
pub struct PeerList {
    home: PathBuf,
    stamp: Option<Stamp>,
    list: Vec<Peer>,
}

impl PeerList {
    /// Nothing is read yet.
    pub fn new(home: &Path) -> Self {
        Self { home: home.to_owned(), stamp: None, list: Vec::new() }
    }

    /// Reads the file again if it has changed; says whether it has.
    pub fn refresh(&mut self) -> bool {
        let stamp = Stamp::of(&self.home.join(FILE));
        if self.stamp == Some(stamp) {
            return false;
        }
        self.stamp = Some(stamp);
        self.list = match Peers::load(&self.home) {
            Ok(peers) => peers.list,
            Err(error) => {
                tracing::warn!(%error, "no peer is trusted until the list can be read");
                Vec::new()
            }
        };
        true
    }

    pub fn now(&self) -> &[Peer] {
        &self.list
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
        return Err(IdentityError::TooManyPeers { path: path.to_owned(), limit: PEERS_MAX });
    }
    let parse = |entry: PeerEntry| {
        let id = entry
            .id
            .parse()
            .map_err(|error: daisy_proto::id::NodeIdError| damaged(error.to_string()))?;
        let name = entry.name.map(NodeName::new).transpose();
        let name = name.map_err(|error| damaged(error.to_string()))?;
        Ok(Peer { id, name, added_at_unix_s: entry.added_at })
    };
    file.peer.into_iter().map(parse).collect()
}

fn render_peers(list: &[Peer]) -> String {
    let mut text = String::from(
        "# Nodes that this one trusts. Written by `daisy cluster pair`, `trust` and `unpair`.\n",
    );
    for peer in list {
        text.push_str(&format_peer(peer));
    }
    text
}

fn format_peer(peer: &Peer) -> String {
    // Names have no control characters, so these two are all that a TOML string must escape.
    let name = peer.name.as_ref().map_or_else(String::new, |name| {
        format!("name = \"{}\"\n", name.as_str().replace('\\', "\\\\").replace('"', "\\\""))
    });
    format!("\n[[peer]]\nid = \"{}\"\n{name}added_at = {}\n", peer.id, peer.added_at_unix_s)
}

pub(super) const FILE: &str = "peers.toml";
/// Room for [`PEERS_MAX`] entries of about 400 bytes.
const PEERS_BYTES_MAX: u64 = 512 * 1024;
const PEERS_MAX: usize = 1024;
/// As many letters of an id as tables show.
const ID_LETTERS_MIN: usize = 8;

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::super::tests::{home, mode, write_private};
    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    #[test]
    fn peers_survive_the_file() {
        let dir = home();
        let mut peers = Peers::load(dir.path()).unwrap();
        let (a, b) = (NodeId([1; 32]), NodeId([2; 32]));
        let name = name(r#"Anna's "mini" \ Küche = [x] #1"#);
        assert!(peers.trust(a, Some(&name), 1_700_000_000).unwrap());
        assert!(peers.trust(b, None, 7).unwrap());
        assert!(!peers.trust(b, None, 8).unwrap(), "known already");
        assert!(!peers.trust(b, Some(&self::name("beta")), 9).unwrap());
        assert_eq!(mode(&dir.path().join("peers.toml")), 0o600);

        let read = Peers::load(dir.path()).unwrap();
        let entry = |id, name, added_at_unix_s| Peer { id, name: Some(name), added_at_unix_s };
        let want = [entry(a, name, 1_700_000_000), entry(b, self::name("beta"), 7)];
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
            (format!("[[peer]]\nid = \"{id}\"\nname = \"a\\u0007\"\nadded_at = 1\n"), "shown"),
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
    fn a_person_names_a_peer_by_name_or_by_the_beginning_of_its_id() {
        let dir = home();
        let mut peers = Peers::load(dir.path()).unwrap();
        let (a, b, c) = (NodeId([1; 32]), NodeId([2; 32]), NodeId([3; 32]));
        peers.trust(a, Some(&name("mini")), 1).unwrap();
        peers.trust(b, Some(&name("mini")), 1).unwrap();
        peers.trust(c, None, 1).unwrap();
        let ids = |text: &str| -> Vec<NodeId> {
            peers.matching(text).iter().map(|peer| peer.id).collect()
        };
        assert_eq!(ids("mini"), [a, b]);
        assert_eq!(ids(&c.to_string()), [c]);
        assert_eq!(ids(&c.short().to_ascii_uppercase()), [c]);
        assert!(ids("").is_empty() && ids("a").is_empty() && ids("nobody").is_empty());
    }

    #[test]
    fn an_untrusted_peer_is_gone_from_the_file_and_for_a_running_check() {
        let dir = home();
        let mut peers = Peers::load(dir.path()).unwrap();
        let (a, b) = (NodeId([1; 32]), NodeId([2; 32]));
        let trusted = trust_check(dir.path());
        peers.trust(a, None, 1).unwrap();
        peers.trust(b, None, 1).unwrap();
        assert!(trusted(&a) && trusted(&b));
        assert!(peers.untrust(&a).unwrap() && !peers.untrust(&a).unwrap());
        assert!(!trusted(&a) && trusted(&b));
        let mut list = PeerList::new(dir.path());
        assert!(list.refresh() && !list.refresh());
        assert_eq!(list.now().len(), 1);
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
