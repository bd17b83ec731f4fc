//! The first message of `daisy-control/1`, in both directions. It never changes.
//!
//! ```text
//! magic "daisyctl" | protocol version u32 LE | build length u8 (0..=64) | build, UTF-8
//! ```
//!
//! It is not a frame and not postcard, so that two versions which share nothing else can still tell
//! each other which of them is older. Everything after it belongs to the version that it names.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

/// Protocol version and build of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    version: u32,
    build: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    #[error("the other end does not speak Daisy's control protocol")]
    Magic,
    #[error("build of {got} bytes is longer than {MAX_BUILD_BYTES}")]
    BuildTooLong { got: usize },
    #[error("build is not UTF-8")]
    BuildNotUtf8,
    #[error("build has the unprintable character U+{:04X}", u32::from(*.0))]
    BuildNotPrintable(char),
}

impl Hello {
    /// A build is at most 64 bytes of printable text, as `0.1.0+4be1f2c`.
    pub fn new(version: u32, build: impl Into<String>) -> Result<Self, HelloError> {
        let build = build.into();
        if build.len() > MAX_BUILD_BYTES {
            return Err(HelloError::BuildTooLong { got: build.len() });
        }
        match build.chars().find(|&c| !is_printable(c)) {
            Some(c) => Err(HelloError::BuildNotPrintable(c)),
            None => Ok(Self { version, build }),
        }
    }

    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    #[must_use]
    pub fn build(&self) -> &str {
        &self.build
    }

    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(FIXED_BYTES + self.build.len());
        out.put_slice(MAGIC);
        out.put_u32_le(self.version);
        out.put_u8(u8::try_from(self.build.len()).expect("a build is at most 64 bytes"));
        out.put_slice(self.build.as_bytes());
        out.freeze()
    }

    /// Reads the hello at the start of `bytes`, and how many bytes it took; `None` while more must
    /// come. A stranger is refused at its first wrong byte.
    ///
    /// ```
    /// use daisy_proto::hello::Hello;
    ///
    /// let hello = Hello::new(1, "0.1.0")?;
    /// let bytes = hello.encode();
    /// assert_eq!(Hello::parse(&bytes[..9])?, None);
    /// assert_eq!(Hello::parse(&bytes)?, Some((hello, bytes.len())));
    /// # Ok::<(), daisy_proto::hello::HelloError>(())
    /// ```
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, HelloError> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(HelloError::Magic);
        }
        let Some(&[.., v0, v1, v2, v3, build_len]) = bytes.first_chunk::<FIXED_BYTES>() else {
            return Ok(None);
        };
        let build_len = usize::from(build_len);
        if build_len > MAX_BUILD_BYTES {
            return Err(HelloError::BuildTooLong { got: build_len });
        }
        let used = FIXED_BYTES + build_len;
        let Some(build) = bytes.get(FIXED_BYTES..used) else { return Ok(None) };
        let build = std::str::from_utf8(build).map_err(|_| HelloError::BuildNotUtf8)?;
        Ok(Some((Self::new(u32::from_le_bytes([v0, v1, v2, v3]), build)?, used)))
    }

    /// Whether `self`, the other end's hello, can talk with `ours`. Builds may differ.
    pub fn check(&self, ours: &Self) -> Result<(), VersionMismatch> {
        if self.version == ours.version {
            return Ok(());
        }
        Err(VersionMismatch { ours: ours.clone(), theirs: self.clone(), peer: None })
    }
}

/// Two versions that cannot talk. Its text names both, the older one, and where to update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionMismatch {
    pub ours: Hello,
    pub theirs: Hello,
    peer: Option<String>,
}

impl VersionMismatch {
    /// Names the other node in the text.
    #[must_use]
    pub fn with_peer(self, name: impl Into<String>) -> Self {
        Self { peer: Some(name.into()), ..self }
    }

    /// Whether this node is the older one.
    #[must_use]
    pub const fn ours_is_older(&self) -> bool {
        self.ours.version < self.theirs.version
    }

    fn older(&self) -> String {
        if self.ours_is_older() { "this node".to_owned() } else { self.peer() }
    }

    fn peer(&self) -> String {
        self.peer.as_ref().map_or_else(|| "the other node".to_owned(), |name| format!("`{name}`"))
    }
}

impl fmt::Display for VersionMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} speaks protocol {} (build `{}`) and this node protocol {} (build `{}`): {older} is \
             older; update Daisy on {older}",
            self.peer(),
            self.theirs.version,
            self.theirs.build,
            self.ours.version,
            self.ours.build,
            older = self.older(),
        )
    }
}

impl std::error::Error for VersionMismatch {}

/// A build comes from a stranger and goes to a terminal: no control characters, and none that hide
/// or reorder the text around them.
#[must_use]
pub fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        && !matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        && !matches!(c, '\u{e0000}'..='\u{e007f}')
}

const MAGIC: &[u8; 8] = b"daisyctl";
/// Magic, version, length of the build.
const FIXED_BYTES: usize = 8 + 4 + 1;
const MAX_BUILD_BYTES: usize = 64;
/// The longest hello: what a reader must be ready to hold.
pub const MAX_HELLO_BYTES: usize = FIXED_BYTES + MAX_BUILD_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(version: u32, build: &str) -> Hello {
        Hello::new(version, build).expect("a good build")
    }

    #[test]
    fn every_prefix_wants_more_and_what_follows_is_left() {
        for build in ["", "0.1.0", "ü".repeat(32).as_str()] {
            let sent = hello(7, build);
            let mut bytes = sent.encode().to_vec();
            for cut in 0..bytes.len() {
                assert_eq!(Hello::parse(&bytes[..cut]), Ok(None), "cut at {cut}");
            }
            let used = bytes.len();
            bytes.extend_from_slice(b"next");
            assert_eq!(Hello::parse(&bytes), Ok(Some((sent, used))));
        }
    }

    #[test]
    fn the_longest_hello_fits() {
        assert_eq!(hello(u32::MAX, &"b".repeat(64)).encode().len(), MAX_HELLO_BYTES);
    }

    #[test]
    fn a_stranger_is_refused_at_the_first_wrong_byte() {
        assert_eq!(Hello::parse(b"G"), Err(HelloError::Magic));
        assert_eq!(Hello::parse(b"daisyctX"), Err(HelloError::Magic));
        assert_eq!(
            Hello::parse(b"daisyctl\x01\0\0\0\x41"),
            Err(HelloError::BuildTooLong { got: 65 })
        );
        assert_eq!(Hello::parse(b"daisyctl\x01\0\0\0\x01\xff"), Err(HelloError::BuildNotUtf8));
    }

    #[test]
    fn a_build_cannot_play_with_the_terminal() {
        for bad in ["\u{1b}[2J", "a\nb", "\u{202e}abc", "zero\u{200b}width", "\0", "\u{e0041}"] {
            assert!(matches!(Hello::new(1, bad), Err(HelloError::BuildNotPrintable(_))), "{bad:?}");
        }
    }

    #[test]
    fn another_version_is_told_who_is_older() {
        let (old, new) = (hello(1, "0.1.0"), hello(2, "0.2.0"));
        assert_eq!(old.check(&hello(1, "0.1.7")), Ok(()));

        let text = new.check(&old).expect_err("versions differ").with_peer("mini").to_string();
        assert_eq!(
            text,
            "`mini` speaks protocol 2 (build `0.2.0`) and this node protocol 1 (build `0.1.0`): \
             this node is older; update Daisy on this node"
        );
        let text = old.check(&new).expect_err("versions differ").with_peer("mini").to_string();
        assert!(text.ends_with("`mini` is older; update Daisy on `mini`"), "{text}");
        let text = old.check(&new).expect_err("versions differ").to_string();
        assert!(text.ends_with("update Daisy on the other node"), "{text}");
    }
}
