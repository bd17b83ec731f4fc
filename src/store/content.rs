//! What a file's bytes must be, as the hub states it, which is also the name of its blob in the cache.
//!
//! Large files have a SHA-256; small ones lie in git, whose ids are a SHA-1 over a short prefix and the bytes
//! (<https://git-scm.com/book/en/v2/Git-Internals-Git-Objects>). That one only guards against damage.

use std::fmt;

use aws_lc_rs::digest;
use data_encoding::HEXLOWER;

/// The hash of a file's bytes; shown as lower-case hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    Sha256([u8; 32]),
    /// Of a git blob.
    Git([u8; 20]),
}

impl Content {
    /// Reads 64 or 40 digits of lower-case hex.
    pub fn parse(hex: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(hex.as_bytes()).ok()?;
        match bytes.len() {
            32 => Some(Self::Sha256(bytes.try_into().ok()?)),
            20 => Some(Self::Git(bytes.try_into().ok()?)),
            _ => None,
        }
    }

    /// Begins to hash a file of `bytes`.
    pub fn hasher(self, bytes: u64) -> Hasher {
        let context = match self {
            Self::Sha256(_) => digest::Context::new(&digest::SHA256),
            Self::Git(_) => {
                let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {bytes}\0").as_bytes());
                context
            }
        };
        Hasher { content: self, context }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(hash) => f.write_str(&HEXLOWER.encode(hash)),
            Self::Git(hash) => f.write_str(&HEXLOWER.encode(hash)),
        }
    }
}

/// Hashes a file's bytes, from its first one on.
#[derive(Clone)]
pub struct Hasher {
    content: Content,
    context: digest::Context,
}

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    /// What the bytes were.
    pub fn finish(self) -> Content {
        let hash = self.context.finish();
        let found = match self.content {
            Content::Sha256(_) => hash.as_ref().try_into().ok().map(Content::Sha256),
            Content::Git(_) => hash.as_ref().try_into().ok().map(Content::Git),
        };
        found.expect("a hash has its algorithm's length")
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hasher").field(&self.content).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_of_the_hub() {
        // `printf hello | git hash-object --stdin`, `printf hello | sha256sum`.
        for hex in [
            "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0",
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        ] {
            let content = Content::parse(hex).expect("valid");
            assert_eq!(content.to_string(), hex);
            let mut hasher = content.hasher(5);
            hasher.update(b"hel");
            hasher.update(b"lo");
            assert_eq!(hasher.finish(), content);
            let mut other = content.hasher(5);
            other.update(b"hella");
            assert_ne!(other.finish(), content);
        }
        for odd in ["", "b6fc", "B6FC4C620B67D95F953A5C1C1230AAAB5DB5A1B0", "../../../etc/passwd"] {
            assert_eq!(Content::parse(odd), None, "{odd}");
        }
    }
}
