//! What a commit of a repository holds: its files, their sizes and what their bytes must be.

use std::path::{Component, Path};

use super::content::Content;
use super::source::RepoId;

/// A commit of a model on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    pub repo: RepoId,
    /// The branch, tag or commit that was asked for.
    pub asked: String,
    /// Its id, 40 digits of hex.
    pub commit: String,
    pub files: Vec<RemoteFile>,
    /// The name that the hub gives the repository now, where that is another one.
    pub renamed: Option<String>,
}

/// A file of a commit, wherever its bytes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its path in the repository, by [`is_inside`].
    pub path: String,
    pub bytes: u64,
    pub content: Content,
}

impl Revision {
    pub fn file(&self, path: &str) -> Option<&RemoteFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Configuration, tokenizer, templates and the index: all that is read besides weights.
    pub fn small(&self) -> Vec<&RemoteFile> {
        self.files.iter().filter(|file| is_small(&file.path)).collect()
    }

    /// The safetensors beside `config.json`; those named `model…` where there are any, since adapters and
    /// other forms of the weights may lie beside them. An index may name fewer.
    pub fn weights(&self) -> Vec<&RemoteFile> {
        let is_weight =
            |file: &&RemoteFile| ends(&file.path, "safetensors") && !file.path.contains('/');
        let mut weights: Vec<&RemoteFile> = self.files.iter().filter(is_weight).collect();
        if weights.iter().any(|file| file.path.starts_with("model")) {
            weights.retain(|file| file.path.starts_with("model"));
        }
        weights.sort_by(|a, b| a.path.cmp(&b.path));
        weights
    }
}

/// Bytes that `files` have together.
pub fn total<'f>(files: impl IntoIterator<Item = &'f RemoteFile>) -> u64 {
    files.into_iter().map(|file| file.bytes).fold(0, u64::saturating_add)
}

fn is_small(path: &str) -> bool {
    let name = match path.split_once('/') {
        None => path,
        Some((TEMPLATES, name)) => return !name.contains('/') && ends(name, "jinja"),
        Some(_) => return false,
    };
    ends(name, "json") || ends(name, "jinja") || NAMES.contains(&name)
}

fn ends(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// Whether a path from the network stays in the directory that it is relative to.
pub(super) fn is_inside(path: &str) -> bool {
    let normal = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let clean = path.split('/').all(|part| !part.is_empty() && part != "." && part.len() <= 255);
    normal && clean && path.len() <= PATH_MAX && !path.contains(['\\', '\0'])
}

const TEMPLATES: &str = "additional_chat_templates";
const NAMES: &[&str] = &["tokenizer.model", "merges.txt", "vocab.txt"];
const PATH_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_read_is_fetched() {
        let files = [
            ".gitattributes",
            "README.md",
            "additional_chat_templates/tool_use.jinja",
            "additional_chat_templates/x/y.jinja",
            "adapter.safetensors",
            "chat_template.jinja",
            "config.json",
            "merges.txt",
            "model-00002-of-00002.safetensors",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/model.json",
            "onnx/model.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
        ];
        let file = |path: &str| RemoteFile {
            path: path.to_owned(),
            bytes: 2,
            content: Content::Git([0; 20]),
        };
        let revision = Revision {
            repo: RepoId::parse("a/b").expect("a name"),
            asked: "main".to_owned(),
            commit: "0".repeat(40),
            files: files.map(file).to_vec(),
            renamed: None,
        };
        let paths = |files: Vec<&RemoteFile>| -> Vec<String> {
            files.iter().map(|file| file.path.clone()).collect()
        };
        assert_eq!(
            paths(revision.small()),
            [
                "additional_chat_templates/tool_use.jinja",
                "chat_template.jinja",
                "config.json",
                "merges.txt",
                "model.safetensors.index.json",
                "tokenizer.json",
            ]
        );
        assert_eq!(
            paths(revision.weights()),
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        );
        assert_eq!(total(revision.weights()), 4);
    }

    #[test]
    fn paths_stay_inside() {
        for path in ["a", "a/b.json", "a-b_c.d"] {
            assert!(is_inside(path), "{path}");
        }
        for path in ["", "/a", "..", "a/../b", "a//b", "a/", "./a", "a\\b", "a\0b"] {
            assert!(!is_inside(path), "{path}");
        }
    }
}
