//! What people call a node. One rule for every place where a name comes in: the command line, files,
//! other nodes, and multicast, where anyone may write anything.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::hello::is_printable;

/// A node's name: 1 to 63 bytes of printable text that does not begin with a hyphen, so that it can
/// stand in a terminal, in a table and on a command line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not usable as a node's name: {why}; use 1 to 63 bytes of printable text that does \
     not begin with a hyphen or a space"
)]
pub struct NameError {
    name: String,
    why: &'static str,
}

impl NodeName {
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        let why = if name.is_empty() {
            "it is empty"
        } else if name.len() > NAME_BYTES_MAX {
            "it is too long"
        } else if !name.chars().all(is_printable) {
            "it has a character that cannot be shown"
        } else if name.starts_with('-') {
            "it looks like an option"
        } else if name.trim() != name {
            "it begins or ends with a space"
        } else {
            return Ok(Self(name));
        };
        Err(NameError { name: shortened(&name), why })
    }

    /// The nearest name to what a machine calls itself; none where nothing of it is left.
    #[must_use]
    pub fn nearest(text: &str) -> Option<Self> {
        let printable: String = text.chars().filter(|&c| is_printable(c)).collect();
        let begun = printable.trim_start_matches(|c: char| c == '-' || c.is_whitespace());
        let end = (0..=begun.len().min(NAME_BYTES_MAX)).rfind(|&end| begun.is_char_boundary(end));
        Self::new(begun[..end.unwrap_or(0)].trim()).ok()
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An error shows enough of a name to know it again, not a megabyte of it.
fn shortened(name: &str) -> String {
    name.chars().take(NAME_BYTES_MAX).collect()
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl TryFrom<String> for NodeName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

/// As a DNS label has.
const NAME_BYTES_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_do_harm_are_refused() {
        for good in ["mini", "Anna's Mac", "Küche", "a-b", "日本", &"x".repeat(63)] {
            assert_eq!(NodeName::new(good).map(String::from), Ok(good.to_owned()));
        }
        let long = "x".repeat(64);
        for bad in
            ["", "-rf", "--home=/", " a", "a ", "a\nb", "\u{1b}[2J", "\u{202e}abc", "a\0", &long]
        {
            let error = NodeName::new(bad).expect_err(bad).to_string();
            assert!(!error.contains('\u{1b}') && !error.contains('\u{202e}'), "{error:?}");
        }
    }

    #[test]
    fn a_machines_name_is_made_usable() {
        let huge = format!("{}ü", "x".repeat(62));
        for (machine, expected) in [
            ("mini", Some("mini")),
            (" --mini\u{7}\n", Some("mini")),
            ("\u{1b}", None),
            ("---", None),
            (huge.as_str(), Some(&huge[..62])),
        ] {
            let name = NodeName::nearest(machine);
            assert_eq!(name.as_ref().map(NodeName::as_str), expected, "{machine:?}");
        }
    }
}
