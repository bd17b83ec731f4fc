//! `config.toml` in Daisy's home: what a node always starts with. A flag counts more.

use std::path::Path;

use daisy_proto::NodeName;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::Failure;
use crate::units::Bytes;

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// This node's name.
    pub(crate) name: Option<NodeName>,
    /// Where other nodes reach this one.
    pub(crate) listen: Option<String>,
    /// Addresses of nodes that multicast does not find.
    pub(crate) peers: Vec<String>,
    /// Whether to find others by multicast, and to be found.
    pub(crate) discovery: Option<bool>,
    /// The most memory that ranks here may take.
    #[serde(deserialize_with = "size")]
    pub(crate) memory_limit: Option<Bytes>,
    /// The share of this machine's memory that weights may take.
    pub(crate) residency_ceiling: Option<Percent>,
}

/// From 1 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Percent(pub(crate) u8);

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let percent = i64::deserialize(value)?;
        let is_share = |percent: &u8| (1..=100).contains(percent);
        u8::try_from(percent).ok().filter(is_share).map(Self).ok_or_else(|| {
            D::Error::custom(format!("{percent} is not a share in percent, from 1 to 100"))
        })
    }
}

fn size<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Bytes>, D::Error> {
    String::deserialize(value)?.parse().map(Some).map_err(D::Error::custom)
}

impl Config {
    /// No file is an empty one.
    pub(crate) fn load(home: &Path) -> Result<Self, Failure> {
        let path = home.join("config.toml");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => {
                let why = format!("cannot read {}", path.display());
                return Err(anyhow::Error::new(error).context(why).into());
            }
        };
        toml::from_str(&text).map_err(|error| {
            Failure::usage(format!("{}: {}", path.display(), error.to_string().trim()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_faults_are_named() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(Config::load(dir.path()).expect("none"), Config::default());
        let write = |text: &str| std::fs::write(dir.path().join("config.toml"), text);
        write(
            "name = \"studio\"\npeers = [\"10.0.0.2\", \"mini.local:7\"]\nmemory_limit = \"12GiB\"\nresidency_ceiling = 75\n",
        )
        .expect("written");
        let config = Config::load(dir.path()).expect("good");
        assert_eq!(config.name.expect("a name").as_str(), "studio");
        assert_eq!(config.peers, ["10.0.0.2", "mini.local:7"]);
        assert_eq!(config.memory_limit, Some(Bytes(12 << 30)));
        assert_eq!(config.residency_ceiling, Some(Percent(75)));
        for (text, named) in [
            ("peer = []", "peer"),
            ("peers = 3", "peers"),
            ("name = \"-x\"", "option"),
            ("memory_limit = 12", "memory_limit"),
            ("residency_ceiling = 0", "0 is not a share in percent"),
            ("residency_ceiling = \"70\"", "residency_ceiling"),
            ("memory_limit = \"12 GB\"", "12GiB or 800MiB"),
            ("x", "x"),
        ] {
            write(text).expect("written");
            let Err(Failure::Refused(refusal)) = Config::load(dir.path()) else { panic!("{text}") };
            assert!(refusal.message.contains("config.toml"), "{}", refusal.message);
            assert!(refusal.message.contains(named), "{}", refusal.message);
        }
    }
}
