//! What the environment says of the hub: where it is, who asks, where files lie, whether to ask at all.
//!
//! The same variables as `huggingface_hub`'s
//! (<https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables>). They are read
//! where a person gives a command, and handed on: a node may be a service that has none of them.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// What a command's user wants of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubSettings {
    /// Without a slash at its end.
    pub endpoint: String,
    pub token: Option<Token>,
    /// The cache of this machine's user, shared with other tools.
    pub cache: PathBuf,
    /// Nothing is asked over the network.
    pub offline: bool,
}

/// Proves who asks. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("HF_ENDPOINT is {0:?}: it is the hub's address, as https://huggingface.co")]
    Endpoint(String),
    #[error("the token in {from} holds what no token does: sign in anew, or set HF_TOKEN")]
    Token { from: String },
    #[error("no home directory is known: set HF_HUB_CACHE")]
    NoHome,
}

impl HubSettings {
    /// Reads this process's environment, and the file that the token may be in.
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::read(&|name| std::env::var_os(name), std::env::home_dir().as_deref())
    }

    /// Reads `variable`s, and the file that the token may be in.
    pub fn read(
        variable: &dyn Fn(&str) -> Option<OsString>,
        home: Option<&Path>,
    ) -> Result<Self, SettingsError> {
        // As there, an empty one counts as none.
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(|value| expanded(PathBuf::from(value), home));
        let is_on = |name: &str| {
            set(name).is_some_and(|value| {
                let value = value.to_string_lossy().to_uppercase();
                ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
            })
        };
        let base = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| home.map(|home| home.join(".cache/huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| base.as_ref().map(|base| base.join("hub")))
            .ok_or(SettingsError::NoHome)?;
        let file = path("HF_TOKEN_PATH").or_else(|| base.map(|base| base.join("token")));
        Ok(Self {
            endpoint: endpoint(set("HF_ENDPOINT"))?,
            token: token(set("HF_TOKEN"), file.as_deref())?,
            cache: std::path::absolute(&cache).unwrap_or(cache),
            offline: is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
        })
    }
}

impl Token {
    /// None: it could not stand in a request.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let fits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_graphic());
        fits.then(|| Self(text.to_owned()))
    }

    /// For a request to the hub, and for the socket to this machine's node.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

fn endpoint(set: Option<OsString>) -> Result<String, SettingsError> {
    let Some(set) = set else { return Ok(ENDPOINT.to_owned()) };
    let text = set.to_string_lossy().trim().trim_end_matches('/').to_owned();
    let address = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let fits = address.is_some_and(|address| {
        !address.is_empty() && address.bytes().all(|c| c.is_ascii_graphic() && !b"@?#".contains(&c))
    });
    if fits { Ok(text) } else { Err(SettingsError::Endpoint(text)) }
}

fn token(set: Option<OsString>, file: Option<&Path>) -> Result<Option<Token>, SettingsError> {
    let (text, from) = match (set, file) {
        (Some(set), _) => (set.to_string_lossy().into_owned(), "HF_TOKEN".to_owned()),
        (None, Some(file)) => match std::fs::read_to_string(file) {
            Ok(text) => (text, file.display().to_string()),
            // Not signed in.
            Err(_) => return Ok(None),
        },
        (None, None) => return Ok(None),
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    Token::new(&text).map(Some).ok_or(SettingsError::Token { from })
}

fn expanded(path: PathBuf, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

const ENDPOINT: &str = "https://huggingface.co";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)], home: &Path) -> Result<HubSettings, SettingsError> {
        let find = |name: &str| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        };
        HubSettings::read(&find, Some(home))
    }

    #[test]
    fn the_variables_of_huggingface_hub_count() {
        let home = Path::new("/home/anna");
        for (set, cache) in [
            (&[][..], "/home/anna/.cache/huggingface/hub"),
            (&[("HF_HOME", "/data/hf")], "/data/hf/hub"),
            (&[("HF_HOME", "~/hf")], "/home/anna/hf/hub"),
            (&[("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HF_HOME", "/data/hf"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HF_HOME", "")], "/home/anna/.cache/huggingface/hub"),
        ] {
            let settings = read(set, home).expect("valid");
            assert_eq!(settings.cache, Path::new(cache), "{set:?}");
            assert_eq!(settings.endpoint, "https://huggingface.co");
            assert_eq!((settings.token, settings.offline), (None, false));
        }
        for (value, offline) in [("1", true), ("yes", true), ("0", false), ("", false)] {
            let settings = read(&[("HF_HUB_OFFLINE", value)], home).expect("valid");
            assert_eq!(settings.offline, offline, "{value:?}");
        }
        let mirror = read(&[("HF_ENDPOINT", "http://127.0.0.1:9/hub/")], home).expect("valid");
        assert_eq!(mirror.endpoint, "http://127.0.0.1:9/hub");
        for odd in ["huggingface.co", "https://", "ftp://x", "https://a:b@c", "https://a b"] {
            let error = read(&[("HF_ENDPOINT", odd)], home).expect_err(odd);
            assert!(error.to_string().contains("HF_ENDPOINT"), "{error}");
        }
    }

    #[test]
    fn a_token_comes_from_the_environment_or_a_file_and_is_never_shown() {
        let home = tempfile::tempdir().expect("a directory");
        let kept = home.path().join(".cache/huggingface");
        std::fs::create_dir_all(&kept).expect("made");
        std::fs::write(kept.join("token"), "hf_file\n").expect("written");
        let of = |set: &[(&str, &str)]| read(set, home.path()).expect("valid").token;
        assert_eq!(of(&[]).expect("a token").expose(), "hf_file");
        assert_eq!(of(&[("HF_TOKEN", "hf_set")]).expect("a token").expose(), "hf_set");
        let other = home.path().join("other");
        std::fs::write(&other, "hf_other").expect("written");
        let path = other.to_string_lossy();
        assert_eq!(of(&[("HF_TOKEN_PATH", path.as_ref())]).expect("one").expose(), "hf_other");
        assert_eq!(of(&[("HF_TOKEN_PATH", "/nowhere")]), None);
        let shown = format!("{:?}", read(&[("HF_TOKEN", "hf_set")], home.path()));
        assert!(!shown.contains("hf_set"), "{shown}");
        let error = read(&[("HF_TOKEN", "two words")], home.path()).expect_err("odd");
        assert!(!error.to_string().contains("words"), "{error}");
    }
}
