//! Key files: which there are, whether they may be used, and opening one that has a passphrase.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh::keys::{Algorithm, PrivateKey, PublicKey, decode_secret_key};

use super::files::read_text;

/// A file that may hold a key.
#[derive(Debug)]
pub(super) struct KeyFile {
    pub(super) path: PathBuf,
    /// None: only known once it is opened.
    pub(super) public: Option<PublicKey>,
    pub(super) secret: Secret,
}

pub(super) enum Secret {
    Open(Arc<PrivateKey>),
    /// The file's text.
    Locked(String),
    /// A public key: an agent has the other half.
    Elsewhere,
    /// With the reason.
    Unusable(String),
}

impl KeyFile {
    /// None: there is no such file.
    pub(super) fn load(path: &Path) -> Option<Self> {
        let path = path.to_owned();
        let unusable = |why: String| {
            Some(Self { path: path.clone(), public: None, secret: Secret::Unusable(why) })
        };
        let text = match read_text(&path) {
            Ok(text) => text?,
            Err(error) => return unusable(error.to_string()),
        };
        if !text.contains("PRIVATE KEY-----") {
            return match PublicKey::from_openssh(text.trim()) {
                Ok(key) => Some(Self { public: Some(key), secret: Secret::Elsewhere, path }),
                Err(_) => unusable("is no key".to_owned()),
            };
        }
        let mode = std::fs::metadata(&path).map_or(0, |meta| meta.mode() & 0o777);
        if mode & 0o077 != 0 {
            return unusable(format!("is open to other users: chmod 600 {}", path.display()));
        }
        match decode_secret_key(&text, None) {
            Ok(key) => {
                let public = Some(key.public_key().clone());
                Some(Self { path, public, secret: Secret::Open(Arc::new(key)) })
            }
            Err(error) => match public_half(&path, &text) {
                _ if is_damaged(&text) => unusable(format!("cannot be read: {error}")),
                public => Some(Self { path, public, secret: Secret::Locked(text) }),
            },
        }
    }

    /// Whether its secret lies in a device that is touched, which only the system's `ssh` asks.
    pub(super) fn is_on_hardware(&self) -> bool {
        self.public.as_ref().is_some_and(|key| is_hardware(&key.algorithm()))
    }
}

pub(super) fn is_hardware(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256)
}

/// Opens a locked file's text; none: the passphrase is wrong.
pub(super) fn unlock(text: &str, passphrase: &str) -> Option<Arc<PrivateKey>> {
    decode_secret_key(text, Some(passphrase)).ok().map(Arc::new)
}

/// Of OpenSSH's form it lies open in the file, of the older ones beside it.
fn public_half(path: &Path, text: &str) -> Option<PublicKey> {
    if let Ok(key) = PrivateKey::from_openssh(text) {
        return Some(key.public_key().clone());
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".pub");
    let text = read_text(Path::new(&beside)).ok()??;
    PublicKey::from_openssh(text.trim()).ok()
}

/// Not readable, and not because of a passphrase.
fn is_damaged(text: &str) -> bool {
    let is_locked = PrivateKey::from_openssh(text).is_ok_and(|key| key.is_encrypted());
    !is_locked && !text.contains("ENCRYPTED")
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open(_) => "Open",
            Self::Locked(_) => "Locked",
            Self::Elsewhere => "Elsewhere",
            Self::Unusable(_) => "Unusable",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use russh::keys::ssh_key::LineEnding;

    use super::*;

    fn key() -> PrivateKey {
        PrivateKey::random(&mut rand(), Algorithm::Ed25519).expect("a key")
    }

    fn rand() -> impl russh::keys::ssh_key::rand_core::CryptoRng {
        russh::keys::key::safe_rng()
    }

    fn write(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
        path
    }

    #[test]
    fn files_are_open_locked_public_or_of_no_use() {
        let dir = tempfile::tempdir().expect("a folder");
        let key = key();
        let plain = key.to_openssh(LineEnding::LF).expect("text");
        let locked = key.encrypt(&mut rand(), "secret").expect("encrypted");
        let locked = locked.to_openssh(LineEnding::LF).expect("text");
        let public = key.public_key().to_openssh().expect("text");

        let open = KeyFile::load(&write(dir.path(), "open", &plain, 0o600)).expect("there");
        assert!(matches!(open.secret, Secret::Open(_)), "{open:?}");
        let file = KeyFile::load(&write(dir.path(), "locked", &locked, 0o400)).expect("there");
        assert_eq!(file.public.as_ref(), Some(key.public_key()), "seen without the passphrase");
        let Secret::Locked(text) = &file.secret else { panic!("{file:?}") };
        assert!(unlock(text, "wrong").is_none());
        assert_eq!(unlock(text, "secret").expect("right").public_key(), key.public_key());
        let half = KeyFile::load(&write(dir.path(), "half.pub", &public, 0o644)).expect("there");
        assert!(matches!(half.secret, Secret::Elsewhere) && half.public.is_some());

        let unusable = |name: &str, text: &str, mode| match KeyFile::load(&write(
            dir.path(),
            name,
            text,
            mode,
        ))
        .expect("there")
        .secret
        {
            Secret::Unusable(why) => why,
            other => panic!("{name}: {other:?}"),
        };
        assert!(unusable("shared", &plain, 0o640).contains("chmod 600"));
        assert!(unusable("text", "hello", 0o600).contains("no key"));
        assert!(unusable("cut", &plain[..plain.len() / 2], 0o600).contains("cannot be read"));
        assert!(KeyFile::load(&dir.path().join("none")).is_none());
        let folder = KeyFile::load(dir.path()).expect("there");
        assert!(matches!(folder.secret, Secret::Unusable(_)));
    }
}
