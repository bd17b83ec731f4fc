//! What `--model` names: a directory, a model on the hub, or one in Daisy's own store.
//!
//! Pure but for one question, whether a directory is there: that one wins, as it does for other tools.

use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Where a model comes from, as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Dir(PathBuf),
    /// A branch, tag or commit of a repository; `main` where none was named.
    Hub {
        repo: RepoId,
        revision: String,
    },
    /// The name of one under models/ in Daisy's home.
    Own(String),
}

/// `ORG/NAME`, as the hub allows it: safe in a path and in an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error(
        "a model has a name: give ORG/NAME, a directory, or a name that `daisy model ls` shows"
    )]
    Empty,
    #[error("{0:?} looks like an option: a directory of that name is written ./{0}")]
    Option(String),
    #[error(
        "{0:?} is not a model's name on the hub: that is ORG/NAME, of letters, digits, `-`, `_` and `.`"
    )]
    Repo(String),
    #[error("{0:?} is not a revision: give a branch, a tag or a commit, as in ORG/NAME@main")]
    Revision(String),
    #[error("{}: there is no such directory; a model on the hub is written ORG/NAME", .0.display())]
    NoDirectory(PathBuf),
    #[error(
        "{0:?} is a web address: write ORG/NAME, and another hub than huggingface.co into HF_ENDPOINT"
    )]
    Url(String),
}

impl Source {
    /// Reads a value of `--model`; `is_dir` says whether a directory is there.
    pub fn parse(text: &str, is_dir: &dyn Fn(&Path) -> bool) -> Result<Self, SourceError> {
        if text.trim().is_empty() {
            return Err(SourceError::Empty);
        }
        if text.starts_with('-') {
            return Err(SourceError::Option(text.to_owned()));
        }
        let path = Path::new(text);
        if is_dir(path) {
            return Ok(Self::Dir(path.to_owned()));
        }
        if text.contains("://") {
            return Err(SourceError::Url(text.to_owned()));
        }
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (text, None),
        };
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        match name.matches('/').count() {
            0 if plain && revision.is_none() && is_name(name) => Ok(Self::Own(name.to_owned())),
            1 if plain => {
                let revision = revision.unwrap_or(MAIN);
                if !is_revision(revision) {
                    return Err(SourceError::Revision(revision.to_owned()));
                }
                Ok(Self::Hub { repo: RepoId::parse(name)?, revision: revision.to_owned() })
            }
            _ if revision.is_some() && plain => Err(SourceError::Repo(name.to_owned())),
            _ => Err(SourceError::NoDirectory(path.to_owned())),
        }
    }
}

impl RepoId {
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        match text.split_once('/') {
            Some((org, name)) if is_name(org) && is_name(name) => Ok(Self(text.to_owned())),
            _ => Err(SourceError::Repo(text.to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The hub's own rule. `--` would be read as a slash in the cache's names.
fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let edge = |c: char| c == '-' || c == '.';
    (1..=NAME_MAX).contains(&name.len())
        && name.chars().all(fits)
        && !name.starts_with(edge)
        && !name.ends_with(edge)
        && !name.contains("--")
        && !name.contains("..")
}

/// What git allows of a reference, and no more than a path may hold.
pub(super) fn is_revision(revision: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./+".contains(c);
    let part =
        |part: &str| !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with('.');
    (1..=REVISION_MAX).contains(&revision.len())
        && revision.chars().all(fits)
        && revision.split('/').all(part)
        && !revision.contains("..")
}

/// A commit's id in full.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40
        && revision.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

pub const MAIN: &str = "main";
const NAME_MAX: usize = 96;
const REVISION_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Source, SourceError> {
        Source::parse(text, &|path| path == Path::new("here/model") || path == Path::new("/m"))
    }

    #[test]
    fn a_model_is_a_directory_a_name_on_the_hub_or_an_own_name() {
        let hub = |repo: &str, revision: &str| Source::Hub {
            repo: RepoId::parse(repo).expect("a name"),
            revision: revision.to_owned(),
        };
        for (text, expected) in [
            ("/m", Source::Dir("/m".into())),
            // As a directory that is there.
            ("here/model", Source::Dir("here/model".into())),
            ("there/model", hub("there/model", "main")),
            ("Qwen/Qwen3-0.6B", hub("Qwen/Qwen3-0.6B", "main")),
            ("a/b@refs/pr/3", hub("a/b", "refs/pr/3")),
            ("a/b@v1.0", hub("a/b", "v1.0")),
            ("smollm2", Source::Own("smollm2".to_owned())),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_names_no_model_says_why() {
        for (text, said) in [
            ("", "a model has a name"),
            (" ", "a model has a name"),
            ("--help", "looks like an option"),
            ("-x/y", "looks like an option"),
            ("/gone", "no such directory"),
            ("./a/b", "no such directory"),
            ("../b", "no such directory"),
            ("..", "no such directory"),
            ("a/..", "no such directory"),
            ("a/b/c", "no such directory"),
            ("a/b/", "no such directory"),
            ("a/b--c", "not a model's name"),
            ("a/.b", "not a model's name"),
            ("a b/c", "not a model's name"),
            ("a/b/c@main", "not a model's name"),
            ("a/b@", "not a revision"),
            ("a/b@../x", "not a revision"),
            ("a/b@x..y", "not a revision"),
            ("a/b@-x", "not a revision"),
            ("https://huggingface.co/a/b", "HF_ENDPOINT"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn commits_are_told_from_branches() {
        assert!(is_commit("0123456789abcdef0123456789abcdef01234567"));
        assert!(!is_commit("main") && !is_commit("0123456789ABCDEF0123456789abcdef01234567"));
    }
}
