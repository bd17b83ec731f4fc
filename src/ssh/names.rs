//! The names of files in `~/.ssh/config`: `~`, `${NAME}` and `%h`.

use std::path::{Path, PathBuf};

use super::config::Value;
use super::error::{Place, SshError};
use super::settings::User;

/// What the parts of a name stand for.
#[derive(Debug)]
pub(super) struct Names<'a> {
    pub(super) user: &'a User,
    /// Without the `%`.
    pub(super) tokens: &'a [(char, &'a str)],
}

impl Names<'_> {
    /// All that a value names, but for `none`.
    pub(super) fn files(&self, value: &Value) -> Result<Vec<PathBuf>, SshError> {
        let named = value.words.iter().filter(|word| !word.eq_ignore_ascii_case("none"));
        named.map(|word| self.file(word, &value.at)).collect()
    }

    pub(super) fn file(&self, word: &str, at: &Place) -> Result<PathBuf, SshError> {
        let path = in_home(&self.with_variables(word, at)?, &self.user.home);
        let text = path.to_str().ok_or_else(|| fault(at, format!("{word} is not UTF-8")))?;
        let path = PathBuf::from(expand(text, at, self.tokens)?);
        // As ssh has it: what has no place of its own is taken from where one stands.
        std::path::absolute(&path).map_err(|error| fault(at, format!("{word}: {error}")))
    }

    /// `${NAME}`s.
    fn with_variables(&self, text: &str, at: &Place) -> Result<String, SshError> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after
                .split_once('}')
                .ok_or_else(|| fault(at, format!("{text}: a brace is not closed")))?;
            let value = (self.user.variable)(name)
                .ok_or_else(|| fault(at, format!("{text}: ${{{name}}} is not set here")))?;
            out.push_str(before);
            out.push_str(&value);
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// A name that may begin with `~`.
pub(super) fn in_home(text: &str, home: &Path) -> PathBuf {
    match text.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None if text == "~" => home.to_owned(),
        None => PathBuf::from(text),
    }
}

/// `%h` and the like.
pub(super) fn expand(text: &str, at: &Place, tokens: &[(char, &str)]) -> Result<String, SshError> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let token = chars.next().ok_or_else(|| fault(at, format!("{text} ends with a lone %")))?;
        if token == '%' {
            out.push('%');
            continue;
        }
        let Some((_, value)) = tokens.iter().find(|(name, _)| *name == token) else {
            let what = format!("%{token} in {text}");
            return Err(SshError::NeedsSystem { what, at: Some(at.clone()) });
        };
        out.push_str(value);
    }
    Ok(out)
}

pub(super) fn fault(at: &Place, why: String) -> SshError {
    SshError::Config { at: at.clone(), why }
}
